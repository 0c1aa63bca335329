"""Op graphs and task graphs of networks, what ops cost, and the order of a pipeline's work; read without torch."""
