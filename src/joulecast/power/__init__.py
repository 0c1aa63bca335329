"""Power: meters, the sampler that reads them, and the integration over stages.

Importing this package loads no torch and no MPI: the sampler is a process of its own.
"""
