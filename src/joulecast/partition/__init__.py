"""Cuts a network into pipeline stages.

The input is a number of devices, and a graph of tasks with their seconds and bytes (``taskgraph``).
``measure_tasks`` times the tasks (layers) on one core. The output is a plan, with a proof of how far it is
from the best plan (``planner``). ``baselines`` has the plans of other planners. ``stages_file`` writes the
stages as a program that torch runs.
"""
