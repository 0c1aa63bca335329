"""Measured steps of training that the simulator is judged on, and its predictions of them.

======================  ======================================================================================
``emulated_network``    nodes are network namespaces behind rate-limited links, and compute is timed sleeps
``two_core_training``   real training of two ranks on one machine
``gpu_steps``           steps and all-reduces on GPUs that others measured
``results``             what the first two share: the format of a folder of results, and how a step is judged
======================  ======================================================================================

The programs that measured the first two are in ``experiments/``. :mod:`joulecast.runs.judging` joins and
summarises, as for every model.
"""
