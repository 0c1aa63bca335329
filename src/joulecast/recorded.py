"""Recorded campaigns: the records of many runs in a few compact files, kept with their provenance."""
