"""Advice on what to run: the setting of a training within limits, and the data behind this choice."""
