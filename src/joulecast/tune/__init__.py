"""Tuning: which batch size and power limit make the next recurrence of a training cheapest.

A *recurrence* is one training to its target, tried again where a try fails. A *policy* proposes what to
try, given the *history*; an *environment* runs the proposal and says what it cost. Nothing here loads torch
or MPI before something is trained.
"""
