"""Measures trainings: power meters, the sampler, the observer of any command, and our own MPI training.

The input is a setting or a command. The output is a run.
"""
