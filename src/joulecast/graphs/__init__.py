"""Op graphs, task graphs, what ops cost, and the order of a pipeline's work; read without torch."""
