"""Workloads: the networks and the data sets that a campaign trains, by name."""
