"""The simulator on real GPUs: its error on measured steps, by data and GPU; writes the widths of its intervals.

./run python benchmarks/simulator_gpus.py [--write] [--rows]
"""

import argparse
from pathlib import Path

import pandas as pd
import yaml

from joulecast.files.shipped import recorded_folder
from joulecast.ground_truth.gpu_steps import judged_widths, predicted, read_gpu_steps
from joulecast.report.tables.gpu_steps import gpu_error_table
from joulecast.simulator import interval


def main() -> None:
    """Judge, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write simulator/judged_errors.yaml")
    parser.add_argument("--rows", action="store_true", help="print every row")
    given = parser.parse_args()
    frame = predicted(read_gpu_steps(recorded_folder(Path("recorded/training-steps"))))
    pd.set_option("display.width", 200, "display.max_columns", 30, "display.max_colwidth", 60)
    if given.rows:
        print(frame.to_string())
    print(gpu_error_table(frame).to_string())
    widths = judged_widths(frame)
    print(widths)
    if given.write:
        path = Path(interval.__file__).with_name("judged_errors.yaml")
        head = "# Written by benchmarks/simulator_gpus.py --write: what 90 % of measured steps are off by at most.\n"
        path.write_text(
            head + yaml.safe_dump({"rows": len(frame), "widths": widths}, sort_keys=False)
        )


if __name__ == "__main__":
    main()
