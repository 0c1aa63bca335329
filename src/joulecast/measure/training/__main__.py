"""One rank of one run: ``{mpi} -n {ranks} python -m joulecast.measure.training --spec FILE --out FOLDER``."""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

from pydantic import TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.measure.power.foreign_load import Load
from joulecast.measure.training.ranks import say_reason
from joulecast.runs.files.reading import read_json, validated
from joulecast.runs.spec import RunSpec

_LET_RANK_0_SPEAK_S = 0.5


def _read_spec(path: Path) -> RunSpec:
    return validated(TypeAdapter(RunSpec), read_json(path, "specification of a run"), str(path))


def _load(text: str) -> Load:
    load = json.loads(text)
    return Load(float(load["busy_cores"]), tuple(map(str, load["programs"])))


def main() -> None:
    """Measure this rank's part of the run; end the whole job if it fails."""
    parser = argparse.ArgumentParser(
        prog="python -m joulecast.measure.training", description=__doc__
    )
    parser.add_argument("--spec", type=Path, required=True, help="RunSpec as JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run record")
    parser.add_argument("--load", type=_load, help="load before the run as JSON, if it is known")
    arguments = parser.parse_args()
    try:
        # Imported here, so that the lack of an MPI is reported as the launcher expects it.
        from joulecast.measure.training.mpi import MPI
        from joulecast.measure.training.run import measure_this_run
    except JoulecastError as error:
        say_reason(error, arguments.spec)
        sys.exit(2)
    comm = MPI.COMM_WORLD
    try:
        measure_this_run(_read_spec(arguments.spec), arguments.out, comm, arguments.load)
    except BaseException as error:
        if comm.rank > 0:
            # An error of all ranks is reported by rank 0, which ends the others during this sleep.
            time.sleep(_LET_RANK_0_SPEAK_S)
        if isinstance(error, JoulecastError):
            say_reason(error, arguments.spec)
        else:
            traceback.print_exc()
            say_reason(JoulecastError(f"rank {comm.rank}: {error!r}"), arguments.spec)
        comm.Abort(2 if isinstance(error, JoulecastError) else 1)


if __name__ == "__main__":
    main()
