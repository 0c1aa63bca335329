"""Campaigns: the configuration, its runs, the attempts at them, and the progress."""
