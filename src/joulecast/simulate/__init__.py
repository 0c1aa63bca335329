"""Simulates a training step: time and memory of a parallel strategy (Proteus, Duan et al. 2024).

The input is an op graph, a platform and a strategy. The output is the time of a step, and the memory of each
device. ``answer`` finds the answer to a ``request``. On the way, ``placement`` and ``program`` say what each
device has. ``schedules`` and ``compiler`` say what it does, and in which order. ``flows`` says what an
exchange costs. ``event_loop`` and ``shared_links`` run the step in simulated time, on links that are shared.
``strategy_search`` compares strategies. ``judged`` compares simulated steps with measured ones. The energy of
a step is computed afterwards, in ``joulecast.energy``.
"""
