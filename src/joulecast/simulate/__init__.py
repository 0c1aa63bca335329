"""Simulates a training step: time and memory of a parallel strategy (Proteus, Duan et al. 2024).

In: an op graph, a platform, a strategy. Out: a step's time and each device's memory. The way is: ``compiler``
(each device's work), ``collectives`` and ``transfers`` (what exchange takes), ``network`` (links that are
shared), ``executor`` (the step in time).
``strategy_search`` compares strategies; ``judged`` holds them against measured steps. Energy is priced
afterwards, in ``joulecast.energy``.
"""
