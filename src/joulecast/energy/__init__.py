"""What a training costs: MC2, its rivals, models of time, prices.

In: the runs table, and settings. Out: predictions (time, energy, low, high), fitted in ``fitting``, judged on
held-out runs in ``evaluation``, asked for new settings in ``forecast``. ``strategy_energy`` prices simulated
steps. Loads no torch and no MPI.
"""
