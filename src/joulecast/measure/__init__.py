"""Measures trainings: power meters, the sampler, the observer of any command, and our own MPI training.

In: a setting or a command. Out: a run.
"""
