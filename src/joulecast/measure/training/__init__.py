"""MPI data-parallel training with a stage clock, and the calibration runs.

``python -m joulecast.measure.training --spec SPEC --out RECORD`` under a launcher makes one run.
:func:`joulecast.measure.training.measure_run.measure_run` starts it, and checks its record.
"""
