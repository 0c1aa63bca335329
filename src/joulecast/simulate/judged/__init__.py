"""Measured steps of training that the simulator is judged on, and its predictions of them.

There are three experiments. On an emulated network nodes are network namespaces behind rate-limited links and
compute is timed sleeps. Real training is that of two ranks on one machine. Steps on GPUs are what others
measured, and so are ``all_reduces``. The programs that measured the first two are in ``experiments/``.

=====================  ========================  ======================  ==================
subject                emulated network          real training           GPUs
=====================  ========================  ======================  ==================
what a step is         ``emulated_step``         ``real_step``           ``gpu_steps``
results, predictions   ``judged_on_emulated``    ``judged_on_real``      ``gpu_steps``
=====================  ========================  ======================  ==================

Common: ``jobs`` (a job, its answer, which iterations do not count), ``results`` (the format of the folder)
and ``judging``. :mod:`joulecast.runs.judging` joins and summarises, as for every model.
"""
