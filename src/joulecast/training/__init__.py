"""MPI data-parallel training with a stage clock, and the calibration runs beside it.

``python -m joulecast.training --spec SPEC --out RECORD`` under a launcher is one run;
:func:`joulecast.training.launch.measure` starts it and vouches for its record.
"""
