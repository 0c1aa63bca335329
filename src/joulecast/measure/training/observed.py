"""A campaign's run that is a command of the user; a program that runs on each host."""

import argparse
import sys
from pathlib import Path

from pydantic import TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.measure.observer.asked import Asked
from joulecast.measure.observer.measure import measure_command
from joulecast.measure.training.ranks import say_reason
from joulecast.runs.files.reading import read_json, validated
from joulecast.runs.spec import RunSpec


def _asked(spec: RunSpec) -> Asked:
    observed = spec.observed
    assert observed is not None
    return Asked(
        observed.name,
        observed.command,
        spec.platform,
        observed.samples_per_step,
        observed.steps,
        spec.meters,
        spec.sample_period_s,
        spec,
        metering=spec.metering,
    )


def main() -> None:
    """Run the command, and leave its record in the given folder if it is that of the specification."""
    parser = argparse.ArgumentParser(prog="python -m joulecast.measure.training.observed")
    parser.add_argument("--spec", type=Path, required=True, help="RunSpec as JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run record")
    arguments = parser.parse_args()
    try:
        content = read_json(arguments.spec, "specification of a run")
        spec = validated(TypeAdapter(RunSpec), content, str(arguments.spec))
        ending, result = measure_command(_asked(spec), arguments.out)
        why = ending.fault or result.why_not
        if result.record is not None and not why:
            why = "; ".join(result.record.info.polluted)
        if why:
            raise JoulecastError(f"run {spec.run}: {why}")
    except JoulecastError as error:
        say_reason(error, arguments.spec)
        sys.exit(2)


if __name__ == "__main__":
    main()
