"""Measured steps of training that the simulator is judged on, and the judgement.

There are three experiments. On an emulated network nodes are network namespaces behind rate-limited links and
compute is timed sleeps. Real training is that of two ranks on one machine. Steps on GPUs are what others
measured. The programs that measured the first two are in the project's ``experiments/``.

=====================  ========================  ======================  ==================
subject                emulated network          real training           GPUs
=====================  ========================  ======================  ==================
what a step is         ``emulated_step``         ``real_step``           ``gpu_steps``
folder of results      ``emulated_results``      ``real_results``        ``gpu_steps``
judgement              ``judged_on_emulated``    ``judged_on_real``      ``gpu_steps``
=====================  ========================  ======================  ==================

Common: ``jobs`` (a job and its answer), ``disturbance`` (which iterations do not count), ``results`` (the
format of the folder) and ``judging``.
"""
