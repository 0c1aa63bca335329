"""Networks as op graphs, and what each op costs on a platform.

In: a network by its name, or a module of PyTorch. Out: an op graph (``opgraph``), and the seconds of its ops
(``costs``). Stored graphs are read without torch. ``instrumented`` times the ops of one forward and backward
pass. ``measure_ops`` does so while all ranks compute, as in training.
"""
