"""Collectives that nccl-tests (or rccl-tests) timed: reads what ``all_reduce_perf`` and the other tests
printed.

A log may have several tests, one after the other. A launcher may have written lines before them and in
between.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_text

_WHAT = "log of nccl-tests"
_TIMED = "all_reduce|all_gather|reduce_scatter|alltoall|sendrecv"
_OTHERS = "broadcast|reduce|gather|scatter|hypercube"
_NAME = re.compile(rf"(?<![a-z_])({_TIMED}|{_OTHERS})_perf")
_BEGIN = re.compile(r"# nThreads?:? +\d+ nGpus:? +\d+ (?:nRanks: +\d+ )?minBytes")
_RANK = re.compile(
    r"# +Rank +(\d+) +(?:Group +(\d+) +)?Pid +\d+ on +(\S+) device +\d+ \[[^]]*] +(\S.*)"
)
_ROW = re.compile(
    r"(\d+) +\d+ +[a-z]\w* +(?:[a-z]\w* +)?(?:-?\d+ +)?(\d+\.?\d*) +\d+\.\d+ +\d+\.\d+ +(?:\d\S*|N/A)"
)


@dataclass(frozen=True)
class CollectiveTest:
    """One test: a collective among GPUs, timed at some sizes."""

    file: Path
    collective: str
    """Name of the collective in nccl-tests, without ``_perf``."""
    nodes: int
    gpus: int
    """Number of GPUs of each node."""
    gpu: str
    """Name of the GPU, from its driver."""
    points: tuple[tuple[float, float], ...]
    """Pairs: the bytes of the buffer, and the seconds of the collective (out of place)."""


def _collective(said: str | None, file: Path) -> str:
    plain = {name.replace("_", ""): name for name in _TIMED.split("|")}
    named = {
        plain[found] for found in re.findall("|".join(plain), re.sub("[-_]", "", file.name.lower()))
    }
    named = named or set(re.findall(rf"(?<![a-z])({_OTHERS})(?![a-z])", file.name.lower()))
    if said is None and len(named) == 1:
        return str(named.pop())
    if said is None:
        raise JoulecastError(
            f"{file}: does not say which collective was timed; name the file after it, as all_reduce_perf.log"
        )
    return said


def _test(file: Path, said: str | None, lines: list[str]) -> CollectiveTest:
    ranks = [found.groups() for found in map(_RANK.search, lines) if found]
    rows = [found.groups() for found in map(_ROW.search, lines) if found]
    # A buffer that is smaller than the number of ranks is printed as none.
    points = tuple((float(size), float(us) / 1e6) for size, us in rows if float(size) * float(us))
    if not ranks or not points:
        missing = "no line `# Rank 0 ...`" if not ranks else "no row with a size and its time"
        raise JoulecastError(f"{file}: {missing} in a test; give the whole output of nccl-tests")
    if len({rank for rank, *_ in ranks}) < len(ranks):
        raise JoulecastError(
            f"{file}: ranks share a number, so that each GPU ran alone; build nccl-tests with MPI=1, and "
            "test again"
        )
    counts = Counter(host for _, _, host, _ in ranks)
    if len({group for _, group, *_ in ranks}) > 1 or len(set(counts.values())) > 1:
        raise JoulecastError(
            f"{file}: groups that share links, or nodes with unlike numbers of GPUs: leave this log out"
        )
    gpu = ranks[0][-1].strip()
    return CollectiveTest(
        file, _collective(said, file), len(counts), counts[ranks[0][2]], gpu, points
    )


def read_nccl_tests(source: Path) -> list[CollectiveTest]:
    """All tests of a log, or of the logs in a folder and the folders below it.

    Raises:
        JoulecastError: there is no log, or a log is not from nccl-tests. The error names it.
    """
    files = (
        sorted(path for path in source.rglob("*") if path.is_file())
        if source.is_dir()
        else [source]
    )
    if not files:
        raise JoulecastError(f"{source}: has no files; give a {_WHAT}, or a folder of them")
    tests = []
    for file in files:
        name: str | None = None
        parts: list[tuple[str | None, list[str]]] = []
        for line in read_text(file, _WHAT).splitlines():
            found = None if "concluded" in line else _NAME.search(line)
            name = found[1] if found else name
            if _BEGIN.search(line):
                parts.append((name, []))
                name = None
            elif parts:
                parts[-1][1].append(line)
        if not parts:
            raise JoulecastError(
                f"{file}: is no {_WHAT}: it has no line `# nThread 1 nGpus 1 minBytes ...`"
            )
        tests += [_test(file, said, lines) for said, lines in parts]
    return tests
