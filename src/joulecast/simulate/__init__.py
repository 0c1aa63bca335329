"""Simulation of a parallel training step: strategy, compiler, network, executor (Duan et al. 2024)."""
