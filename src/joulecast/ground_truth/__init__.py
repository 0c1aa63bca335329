"""Measured steps of training that the simulator is judged on, and the judgement.

There are two experiments. On an emulated network nodes are network namespaces behind rate-limited links,
compute is timed sleeps, communication is real MPI over TCP. The other is real training on two ranks of this
machine. Reading and judging need no root, no torch and no MPI; measuring does.

========================  =================================  ==================================
subject                   emulated network                   real training
========================  =================================  ==================================
what a step is            ``emulated_step``                  ``real_step``
which steps are measured  ``emulated_families``              ``real_step``
measuring                 ``emulated_network``               ``real_training``
program of a rank         ``emulated_worker``                ``real_worker``
what they need            ``emulated_nodes``,                :mod:`joulecast.training`
                          ``emulated_messages``
folder of results         ``emulated_results``               ``real_results``
judgement                 ``judged_on_emulated``             ``judged_on_real``
========================  =================================  ==================================

Common to both: ``jobs`` (a job and its answer), ``session`` (measuring, and resuming it),
``disturbance`` (which iterations do not count), ``results`` (the format of the folder) and ``judging``.
"""
