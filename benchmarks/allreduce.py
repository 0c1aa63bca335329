"""Times all-reduces of one host and of several pretended hosts, next to a plain MPI_Allreduce.

`one host` uses the window of shared memory. `across hosts` pretends that every rank is a host of its own, so
that all bytes go through MPI. The peer is `MPI_Allreduce(MPI_IN_PLACE)` on a buffer of the same size. The
three take turns.
"""

import subprocess
import sys
import time
from pathlib import Path

from _output import parser, show


def measure_here(megabytes: int, repeats: int) -> None:
    """Measure on one rank. Rank 0 prints the rows."""
    import json

    import numpy as np
    from mpi4py import MPI

    from joulecast.measure.training.allreduce import open_allreduce
    from joulecast.measure.training.mpi import Hosts

    comm = MPI.COMM_WORLD
    elements = megabytes * 1_000_000 // 4
    bare = np.ones(elements, np.float32)
    together = open_allreduce("shared", Hosts.of(comm), elements, np.float32)
    apart = open_allreduce("two_level", Hosts.of(comm, f"h{comm.rank}"), elements, np.float32)
    times: dict[str, list[float]] = {"bare": [], "one host": [], "across hosts": []}
    for repeat in range(repeats + 1):
        for name in times:
            comm.Barrier()
            start = time.perf_counter()
            if name == "bare":
                comm.Allreduce(MPI.IN_PLACE, bare)
            else:
                reducer = together if name == "one host" else apart
                reducer.arrive()
                reducer.sum(0, elements)
            slowest = comm.allreduce(time.perf_counter() - start, op=MPI.MAX)
            if repeat:
                times[name].append(slowest)
    if comm.rank == 0:
        medians = {name: float(np.median(t)) for name, t in times.items()}
        print(json.dumps(medians))
    together.close()
    apart.close()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--megabytes", type=int, default=536)
    arguments.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--here", action="store_true", help="this process is a rank")
    options = arguments.parse_args()
    if options.here:
        measure_here(options.megabytes, options.repeats)
        return
    import json

    rows = []
    for ranks in options.ranks:
        command = ["mpiexec", "-n", str(ranks), sys.executable, str(Path(__file__).resolve())]
        command += [
            "--here",
            "--megabytes",
            str(options.megabytes),
            "--repeats",
            str(options.repeats),
        ]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        times = json.loads(said)
        for name in ("one host", "across hosts"):
            rows.append(
                {
                    "ranks": ranks,
                    "megabytes": options.megabytes,
                    "where": name,
                    "ms": 1e3 * times[name],
                    "bare_mpi_ms": 1e3 * times["bare"],
                    "times_faster_than_bare": times["bare"] / times[name],
                }
            )
    show(rows, options)


if __name__ == "__main__":
    main()
