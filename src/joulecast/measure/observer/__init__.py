"""Measures any training from outside: runs its command, samples its hosts, observes its steps."""
