"""Cuts a network into pipeline stages.

In: a graph of tasks with their seconds and bytes (``taskgraph``), which ``measure_tasks`` times: layers, each
with a tape of its own, on one core; and a number of devices. Out: a plan with a proof of how far it is from
the best (``planner``), the plans of other planners (``baselines``), and the stages as a program
(``stages_file``) that torch runs.
"""
