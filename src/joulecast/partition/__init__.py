"""Cuts a network into pipeline stages: antichains, an exact planner with its proof, and what others do."""
