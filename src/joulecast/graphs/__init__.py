"""Networks as op graphs, and what each op costs on a platform.

In: a network by its name, or a module of PyTorch. Out: an op graph (``opgraph``), and the seconds of its ops
(``costs``). Stored graphs are read without torch.

A step is timed in two ways, because two questions are asked. ``instrumented`` and ``measure_ops`` time the
ops of the simulator's graph, on one tape and with all ranks at work, as training runs them. ``tasks`` and
``measure_tasks`` time what a pipeline can be cut between: layers, each with a tape of its own, on one core.
"""
