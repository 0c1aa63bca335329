"""Ground truth for a simulator: steps of training measured on an emulated network.

Nodes are network namespaces behind rate-limited links, compute is timed sleeps, communication is
real MPI over TCP. :func:`~joulecast.ground_truth.results.read_results` reads what was measured and
needs no root; :func:`~joulecast.ground_truth.measure.measure` measures it anew and does.
"""
