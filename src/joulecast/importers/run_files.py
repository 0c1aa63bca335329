"""The files of each run of a submission.

``SYSTEM/BENCHMARK/result_X.txt`` is a run and ``SYSTEM/BENCHMARK/power/result_X/node_N.txt`` what its
meters read. Above SYSTEM there is usually ``results`` and any number of folders. Submitters are not
strict about X: it is padded with zeros on one side only, or says ``_raw`` on one side; a power folder
is taken for such a run only if no other run and no other folder could be meant.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath

from joulecast.importers.sources import Tree

_RESULT = re.compile(r"result_[^/]*\.txt")
_METER = re.compile(r"(node|sw)_([0-9]{1,5})\.txt")
_LONGEST_NAME = 150


@dataclass(frozen=True)
class RunFiles:
    """The files of one run and the names that its place gives it.

    ``power`` maps ``node_0``, ``sw_0`` ... to paths, ``benchmark_has_power`` says whether any run of
    the benchmark has a power folder, ``description`` is the submission's own file on the system, and
    ``submitter`` the folders above ``results``.
    """

    run: str
    submitter: str
    system: str
    benchmark: str
    stem: str
    repeat: int
    result: str
    power: dict[str, str]
    benchmark_has_power: bool
    description: str | None

    @property
    def submission(self) -> str:
        """What no other run has: submitter, benchmark, system and result file."""
        name = f"{self.benchmark}-{self.system}-{self.stem}"
        return f"{self.submitter}/{name}" if self.submitter else name


def sanitised(name: str) -> str:
    """``name`` in lower case, not too long, with ``-`` for what a file name should not hold; never empty."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    return plain[:_LONGEST_NAME].strip("-") or "unnamed"


def printable(text: str) -> str:
    """``text`` with a mark for each byte that is no text: names of files may hold any."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _loosely(stem: str) -> str:
    """``stem`` without what submitters are not strict about."""
    return re.sub(r"(?<!\d)0+(?=\d+$)", "", re.sub(r"_raw(?=_|$)", "", stem))


def _folders_of(stems: list[str], folders: list[str]) -> dict[str, str]:
    """The power folder of each result file that has one beyond doubt."""
    found = {stem: stem for stem in stems if stem in set(folders)}
    by_name: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        if folder not in found:
            by_name[_loosely(folder)].append(folder)
    claims = Counter(_loosely(stem) for stem in stems if stem not in found)
    for stem in stems:
        candidates = by_name[_loosely(stem)]
        if stem not in found and len(candidates) == 1 and claims[_loosely(stem)] == 1:
            found[stem] = candidates[0]
    return found


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key under which 2 comes before 10."""
    words = re.split(r"([0-9]{1,18})", text)
    return [(int(word), "") if n % 2 else (-1, word) for n, word in enumerate(words)]


def runs_of(tree: Tree) -> list[RunFiles]:
    """All runs below a tree, sorted; empty where there is no result file.

    A run's name is ``BENCHMARK-SYSTEM-STEM``; where two submitters share it, theirs goes before it.
    """
    results: dict[PurePosixPath, list[str]] = defaultdict(list)
    power: dict[PurePosixPath, dict[str, dict[str, str]]] = defaultdict(dict)
    descriptions: dict[str, str] = {}
    for path in tree.paths():
        place = PurePosixPath(path)
        if _RESULT.fullmatch(place.name):
            results[place.parent].append(place.stem)
        elif (meter := _METER.fullmatch(place.name)) and len(place.parts) >= 3:
            if place.parts[-3] == "power":
                of_run = power[place.parents[2]].setdefault(place.parts[-2], {})
                of_run.setdefault(f"{meter[1]}_{int(meter[2])}", path)
        elif place.suffix == ".json" and place.parent.name == "systems":
            descriptions[path] = path
    runs = []
    for folder, stems in results.items():
        names = (*tree.root, *folder.parts)
        system, benchmark = ("", "", *names)[-2:]
        above = PurePosixPath(*folder.parts[:-2])
        outer = above.parent if above.name == "results" else above
        submitter = "" if outer == PurePosixPath(".") else outer.as_posix()
        stems.sort(key=_natural)
        folders = _folders_of(stems, list(power[folder]))
        for repeat, stem in enumerate(stems, start=1):
            meters = power[folder].get(folders.get(stem, ""), {})
            runs.append(
                RunFiles(
                    run=sanitised(f"{benchmark}-{system}-{stem}"),
                    submitter=printable(submitter),
                    system=printable(system) or "unknown",
                    benchmark=printable(benchmark) or "unknown",
                    stem=printable(stem),
                    repeat=repeat,
                    result=(folder / f"{stem}.txt").as_posix(),
                    power=dict(sorted(meters.items(), key=lambda item: _natural(item[0]))),
                    benchmark_has_power=bool(power[folder]),
                    description=descriptions.get((outer / "systems" / f"{system}.json").as_posix()),
                )
            )
    runs.sort(key=lambda run: _natural(run.result))
    return _uniquely_named(runs)


def _uniquely_named(runs: list[RunFiles]) -> list[RunFiles]:
    shared = Counter(run.run for run in runs)
    taken: set[str] = set()
    named = []
    for run in runs:
        name = run.run
        if shared[name] > 1:
            name = sanitised(f"{run.submitter}-{name}")
        free = (f"{name}-{n}" for n in count(2))
        while name in taken:
            name = next(free)
        taken.add(name)
        named.append(RunFiles(**{**run.__dict__, "run": name}))
    return named
