"""Tuning: which batch size and power limit make the next recurrence of a training cheapest.

A *recurrence* is one training to its target. If a try fails, the training is tried again. A *policy* sees the
*history*, and proposes what to try. An *environment* runs the proposal, and says what it cost. This room
loads torch and MPI only when something is trained.
"""
