"""Judges the simulator on measured steps of training.

======================  ======================================================================================
``emulated_network``    nodes are network namespaces behind rate-limited links, and compute is timed sleeps
``two_core_training``   real training of two ranks on one machine
``gpu_steps``           steps and all-reduces on GPUs that others measured
``results``             the format of a folder of results, and the judgement of steps, for the first two
======================  ======================================================================================

The programs that measured the first two are in ``experiments/``. :mod:`joulecast.runs.judging` joins and
summarises the rows, as for every model.
"""
