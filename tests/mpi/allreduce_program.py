"""Every all-reduce against numpy on random numbers, with hosts of uneven size (run by mpiexec)."""

import numpy as np
from mpi4py import MPI

from joulecast.errors import JoulecastError
from joulecast.measure.training.allreduce import open_allreduce
from joulecast.measure.training.mpi import Hosts, clock_offsets

comm = MPI.COMM_WORLD
layouts = {
    "one host": ["a"] * comm.size,
    "uneven": ["a"] + ["b"] * (comm.size - 1),
    "a host each": [f"h{rank}" for rank in range(comm.size)],
}
for layout, names in layouts.items():
    hosts = Hosts.of(comm, names[comm.rank])
    assert hosts.count == len(set(names)), layout
    offsets = clock_offsets(hosts)
    assert set(offsets) == set(names)
    assert all(abs(o.offset_s) <= max(10 * o.uncertainty_s, 1e-3) for o in offsets.values()), (
        offsets
    )
    for algorithm in ("mpi", "shared", "two_level"):
        if algorithm == "shared" and hosts.count > 1:
            try:
                open_allreduce(algorithm, hosts, 8, np.float32)
            except JoulecastError as error:
                assert "two_level" in str(error)
                continue
            raise AssertionError("shared must refuse several hosts")
        for elements in (1, 7, 200_003):
            reducer = open_allreduce(algorithm, hosts, elements, np.float64, yields=True)
            for first, last in ((0, elements), (elements // 3, elements)):
                everyone = [
                    np.random.default_rng(rank).standard_normal(elements)
                    for rank in range(comm.size)
                ]
                reducer.buffer[:] = everyone[comm.rank]
                reducer.arrive()
                reducer.sum(first, last)
                expected = everyone[comm.rank].copy()
                expected[first:last] = np.sum(everyone, axis=0)[first:last]
                assert np.allclose(reducer.buffer, expected, rtol=0, atol=1e-12), (
                    layout,
                    algorithm,
                )
                same = comm.allgather(reducer.buffer[first:last].tobytes())
                assert len(set(same)) == 1, "ranks differ in their bits"
            reducer.buffer[:] = comm.rank + 5
            reducer.broadcast()
            assert (reducer.buffer == 5).all(), (layout, algorithm)
            reducer.close()
