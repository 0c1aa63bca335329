"""Tuning: which batch size and power limit make the next recurrence of a training cheapest.

A *recurrence* is one training to its target. If a try fails, it is tried again. A *policy* proposes what
to try, from the *history*. An *environment* runs the proposal and says what it cost. Nothing here loads
torch or MPI before something is trained.
"""
