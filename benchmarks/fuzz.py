"""Mutates every format that joulecast reads, and counts the mutations with a result that is not allowed.

    ./run python benchmarks/fuzz.py [--mutations 10000] [--format "task graph"] [--jobs 2] [--seed 0]

``tests/fuzzing.py`` says which results are allowed. The tests use it, too, with fewer mutations.
"""

import argparse
import multiprocessing
import random
import re
import resource
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

_PART = 100
_DATA_BYTES = 4 << 30
"""The most memory of a process, with its libraries. If a mutation needs more, the process fails, and the
machine keeps its memory."""


def part(name: str, first: int, count: int, seed: int) -> list[tuple[int, str, str]]:
    """Try some mutations of a format. For each one that goes wrong: its number, the mutated part, and the
    error."""
    from fuzzing import FORMATS, tried

    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
    found = []
    with tempfile.TemporaryDirectory(prefix="joulecast-fuzz-") as scratch:
        pristine = Path(scratch) / "pristine"
        pristine.mkdir()
        FORMATS[name].make(pristine)
        for number in range(first, first + count):
            rng = random.Random(f"{seed} {name} {number}")
            what, wrong = tried(FORMATS[name], pristine, Path(scratch) / "mutated", rng)
            if wrong:
                found.append((number, what, wrong.replace(scratch, "")))
    return found


def main() -> None:
    from fuzzing import FORMATS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=10_000, help="of each format")
    parser.add_argument("--format", action="append", choices=list(FORMATS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="write the mutated files of one number here")
    parser.add_argument("--number", type=int, help="of the mutation that --keep keeps")
    asked = parser.parse_args()
    names = asked.format or list(FORMATS)
    if asked.keep:
        from fuzzing import tried

        pristine = asked.keep / "pristine"
        pristine.mkdir(parents=True)
        FORMATS[names[0]].make(pristine)
        rng = random.Random(f"{asked.seed} {names[0]} {asked.number}")
        print(*tried(FORMATS[names[0]], pristine, asked.keep / "mutated", rng))
        return
    # Each process starts anew, because its peak of memory includes the memory that it has at the start.
    context = multiprocessing.get_context("spawn")
    wrong_at_all = 0
    with context.Pool(asked.jobs, maxtasksperchild=20) as pool:
        for name in names:
            parts = [
                (name, first, min(_PART, asked.mutations - first), asked.seed)
                for first in range(0, asked.mutations, _PART)
            ]
            found = [wrong for each in pool.starmap(part, parts, chunksize=1) for wrong in each]
            kinds: Counter[str] = Counter()
            examples = defaultdict(list)
            for number, what, wrong in found:
                kind = (
                    re.sub(r"\d+(?!:)", "N", wrong)[:110]
                    if "traceback" not in wrong
                    else wrong[:90]
                )
                kinds[kind] += 1
                examples[kind].append((number, what, wrong))
            print(f"{name}: {asked.mutations} mutations, {len(found)} wrong", flush=True)
            for kind, times in kinds.most_common(25):
                number, what, wrong = examples[kind][0]
                print(f"  {times} x, as number {number} ({what}):\n    {wrong}", flush=True)
            wrong_at_all += len(found)
    sys.exit(bool(wrong_at_all))


if __name__ == "__main__":
    main()
