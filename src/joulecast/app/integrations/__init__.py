"""Connections to other tools: callbacks for their training loops, and exports of runs and forecasts to
them."""
