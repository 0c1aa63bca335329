"""Measures trainings: power meters, the sampler, the observer of any command, and our own MPI training.

The input is the specification of a run, or a command. The output is the record of the run.
"""
