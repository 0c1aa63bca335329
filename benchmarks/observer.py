"""Measures how much longer steps of a training take if it is observed. Bare and observed runs are pairs.

    ./run python benchmarks/observer.py [--pairs N] [--steps N]

The training is examples/own-training on one rank and on two. If `codecarbon` or `perun` are on the PATH, the
same command is also run under them. Run this on a quiet machine.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from _output import parser, show

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/own-training/train.py"
WRAPPERS = {
    "joulecast measure": [sys.executable, "-m", "joulecast.app.cli.main", "measure", "--"],
    "codecarbon monitor": ["codecarbon", "monitor", "--offline", "--country-iso-code", "DEU", "--"],
    "perun monitor": ["perun", "monitor", "-b"],
}


def step_ms(words: list[str], folder: Path) -> float:
    """Milliseconds of a step, as the training itself prints them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    found = re.search(r"steps of ([\d.]+) ms", answer.stdout)
    if found is None:
        raise SystemExit(f"{' '.join(words)}: printed no step time: {answer.stdout[-500:]}")
    return float(found[1])


def main() -> None:
    """Show the median ratio of each wrapper to the bare command, and its range."""
    arguments = parser(__doc__)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    asked = arguments.parse_args()
    rows = []
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    known = {
        name: words
        for name, words in WRAPPERS.items()
        if words[0] == sys.executable or shutil.which(words[0])
    }
    with tempfile.TemporaryDirectory() as folder:
        for ranks in asked.ranks:
            bare = [*launch, str(ranks), str(EXAMPLE), "--steps", str(asked.steps)]
            ratios: dict[str, list[float]] = {name: [] for name in known}
            for _ in range(asked.pairs):
                for name, words in list(known.items()):
                    # The bare command runs before and after. So a machine that gets slower does not count as
                    # overhead.
                    before = step_ms(bare, Path(folder))
                    try:
                        wrapped = step_ms([*words, *bare], Path(folder))
                    except subprocess.CalledProcessError as error:
                        print(f"{name} failed: {error.stderr.splitlines()[-1:]}")
                        del known[name], ratios[name]
                        continue
                    after = step_ms(bare, Path(folder))
                    ratios[name].append(2 * wrapped / (before + after))
            rows += [
                {
                    "ranks": ranks,
                    "wrapper": name,
                    "pairs": len(found),
                    "overhead_percent": 100 * (median(found) - 1),
                    "least_percent": 100 * (min(found) - 1),
                    "most_percent": 100 * (max(found) - 1),
                }
                for name, found in ratios.items()
            ]
    show(rows, asked)


if __name__ == "__main__":
    main()
