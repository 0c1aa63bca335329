"""Cuts a network into pipeline stages.

The input is a number of devices, and a graph of tasks with their seconds and bytes (``taskgraph``).
``measure_tasks`` times the tasks (layers, each with its own tape) on one core. The output is a plan with
a proof of how far it is from the best (``planner``), the plans of other planners (``baselines``), and the
stages as a program (``stages_file``) that torch runs.
"""
