"""Foreign logs made into run records; everything downstream reads nothing else."""
