"""Callbacks for training loops of other libraries, and runs and forecasts for other tools to keep."""
