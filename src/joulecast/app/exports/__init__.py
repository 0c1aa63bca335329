"""Exports of runs and forecasts to other tools."""
