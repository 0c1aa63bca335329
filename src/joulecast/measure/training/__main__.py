"""One process of one run: ``{mpi} -n {ranks} python -m joulecast.measure.training --spec FILE --out FOLDER``.

It is a rank of our own training. If the run is a command of the user, it is the observer of a host.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path

from pydantic import TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.measure.power.other_load import Load
from joulecast.measure.training.ranks import say_reason
from joulecast.runs.files.reading import read_json, validated
from joulecast.runs.spec import RunSpec

_LET_RANK_0_SPEAK_S = 0.5


def _train(spec: RunSpec, spec_file: Path, out: Path, load: Load | None) -> None:
    """Measure this rank's part of the run; end the whole job if it fails."""
    # Imported here, so that the lack of an MPI is reported as the launcher expects it.
    from joulecast.measure.training.mpi import MPI
    from joulecast.measure.training.run import measure_this_run

    comm = MPI.COMM_WORLD
    try:
        measure_this_run(spec, out, comm, load)
    except BaseException as error:
        if comm.rank > 0:
            # An error of all ranks is reported by rank 0, which ends the others during this sleep.
            time.sleep(_LET_RANK_0_SPEAK_S)
        if isinstance(error, JoulecastError):
            say_reason(error, spec_file)
        else:
            traceback.print_exc()
            say_reason(JoulecastError(f"rank {comm.rank}: {error!r}"), spec_file)
        comm.Abort(2 if isinstance(error, JoulecastError) else 1)


def _observe(spec: RunSpec, out: Path) -> None:
    """Run the user's command, and write its record.

    Raises:
        JoulecastError: the command failed, there is no record, or it does not match the specification.
    """
    from joulecast.measure.observer.command import fault_of
    from joulecast.measure.observer.observation import measure_command

    code, result = measure_command(spec, out, in_campaign=True)
    why = fault_of(code) or result.why_not
    if result.record is not None and not why and result.record.info.left_out:
        why = (
            f"{'; '.join(result.record.info.left_out)}. No forecast can use such a run; to get only its time "
            "and energy, run `joulecast measure -- COMMAND`"
        )
    if why:
        raise JoulecastError(f"run {spec.run}: {why}")


def main() -> None:
    """Do this process's part of the run."""
    parser = argparse.ArgumentParser(
        prog="python -m joulecast.measure.training", description=__doc__
    )
    parser.add_argument("--spec", type=Path, required=True, help="RunSpec as JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run record")
    parser.add_argument(
        "--load",
        type=TypeAdapter(Load).validate_json,
        help="load before the run as JSON, if it is known",
    )
    arguments = parser.parse_args()
    try:
        content = read_json(arguments.spec, "specification of a run")
        spec = validated(TypeAdapter(RunSpec), content, str(arguments.spec))
        if spec.observed is None:
            _train(spec, arguments.spec, arguments.out, arguments.load)
        else:
            _observe(spec, arguments.out)
    except JoulecastError as error:
        say_reason(error, arguments.spec)
        sys.exit(2)


if __name__ == "__main__":
    main()
