"""The four papers' numbers, each beside ours, with a verdict: ``tables/papers``."""
