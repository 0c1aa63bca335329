"""What a training costs: MC2, its rivals, models of time, prices.

In: the runs table, and settings. Out: predictions (time, energy, low, high): fitted in ``fitting``, of runs
that are held out in ``evaluation``, of new settings in ``forecast``. ``joulecast.runs.judging`` makes the
errors of them. ``strategy_energy`` prices simulated steps. Loads no torch and no MPI.
"""
