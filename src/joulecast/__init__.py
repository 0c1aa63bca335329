"""Forecast the joules and seconds of distributed training from a few measured runs."""
