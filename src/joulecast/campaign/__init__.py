"""Campaigns: the configuration, the runs that it asks for, their attempts, and how far they are."""
