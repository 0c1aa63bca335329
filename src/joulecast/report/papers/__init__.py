"""The four papers' numbers, each next to ours, with a verdict: ``tables/papers``."""
