"""Run records: what a run was asked to do, what it left behind, and what its figures come from."""
