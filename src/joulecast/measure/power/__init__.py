"""Power: meters, the sampler that reads them, and energy as an integral over stages.

Importing this package loads no torch and no MPI: the sampler is a process of its own.
"""
