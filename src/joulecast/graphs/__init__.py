"""Networks as op graphs, and what each op costs on a platform.

In: a network by its name, or a module of PyTorch. Out: an op graph (``opgraph``), and the seconds of its ops
(``costs``). Stored graphs are read without torch. ``instrumented`` times the ops of a graph on one tape.
``measure_ops`` does so with all ranks at work, as training runs them.
"""
