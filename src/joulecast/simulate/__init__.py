"""Simulates a training step: time and memory of a parallel strategy (Proteus, Duan et al. 2024).

In: an op graph, a platform, a strategy. Out: a step's time and each device's memory. ``answer`` takes what
is asked (``request``) to its simulation. The way is:
``placement`` and ``program`` (what each device has), ``schedules`` and ``compiler`` (what it does in which
order), ``transfers`` (what exchange takes), ``event_loop`` and ``network`` (the step in time, on links that
are shared).
``strategy_search`` compares strategies; ``judged`` holds them against measured steps. Energy is priced
afterwards, in ``joulecast.energy``.
"""
