"""Op graphs: what a network computes, captured from torch and kept as JSON that needs no torch."""
