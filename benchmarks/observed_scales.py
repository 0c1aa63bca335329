"""Measures how well `forecast` predicts a training on four ranks from observed runs on one rank and on two.

    ./run python benchmarks/observed_scales.py

Computing is a sleep, as on a GPU for which the host waits. So four ranks fit on two cores. Loading, the
exchange (gloo) and the update are real. Each program is also measured on four ranks. The forecast does not
see this run.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from _output import parser, show

import joulecast

PROGRAM = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset

class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(1e-3 * len(x))
        return x
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2e-3 * len(gradient))
        return gradient

class Network(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(256, width), torch.nn.Linear(width, 256)])
    def forward(self, x):
        for layer in self.layers:
            x = Sleep.apply(layer(x))
        return x

torch.distributed.init_process_group("gloo")
width, batch, steps = map(int, sys.argv[1:])
network = torch.nn.parallel.DistributedDataParallel(Network(width))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
for (x,) in DataLoader(TensorDataset(torch.randn(batch * steps, 256)), batch_size=batch):
    optimizer.zero_grad()
    network(x).pow(2).mean().backward()
    optimizer.step()
"""
SETTINGS = ((256, 8), (1024, 8), (4096, 8), (4096, 2))
STEPS = 60


def measure(folder: Path, out: str, ranks: int, width: int, batch: int) -> None:
    """Leave a record of the program in ``folder / out``."""
    launch = ["torch.distributed.run", "--nproc-per-node", str(ranks), "program.py"]
    command = [sys.executable, "-m", *launch, *map(str, (width, batch, STEPS))]
    measuring = ["joulecast.app.cli.main", "measure", "--name", "sleeping", "--out", out, "--"]
    subprocess.run(
        [sys.executable, "-m", *measuring, *command], cwd=folder, check=True, capture_output=True
    )


def main() -> None:
    """Show measured and forecast seconds of each program, and the mean error."""
    asked = parser(__doc__).parse_args()
    rows = []
    for width, batch in SETTINGS:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            (folder / "program.py").write_text(PROGRAM)
            for ranks in (1, 2):
                measure(folder, "seen", ranks, width, batch)
            measure(folder, "held-out", 4, width, batch)
            (run,) = joulecast.read_records(folder / "held-out")
            outcome = run.info.outcome
            took_s = outcome.stop_s - outcome.start_s
            (row,) = joulecast.forecast(folder / "seen", gpus=[4], samples=outcome.samples)[
                "forecasts"
            ]
            rows.append(
                {
                    "width": width,
                    "batch": batch,
                    "measured_s": took_s,
                    "forecast_s": row["time_s"],
                    "error_percent": 100 * (row["time_s"] / took_s - 1),
                    "inside_its_interval": row["time_low_s"] <= took_s <= row["time_high_s"],
                }
            )
    mean = sum(abs(row["error_percent"]) for row in rows) / len(rows)
    show([*rows, {"width": "mean of all, without sign", "error_percent": mean}], asked)


if __name__ == "__main__":
    main()
