"""Campaigns: the configuration, its runs, how these are measured, and the progress."""
