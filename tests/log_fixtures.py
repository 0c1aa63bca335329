"""Logs of a made-up training, in the forms that tools write, and what an import of them gave."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.runs.observations import observe
from joulecast.runs.record import read_record

MADE = Path(__file__).parent / "data" / "imports"
ZERO_S = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""
IDLE_W, BUSY_W = 210.0, 540.0
WHAT = ("--network", "net", "--platform", "box")


def run(*words):
    """What a command of the command line printed, and how it ended."""
    return CliRunner().invoke(app, [str(word) for word in words])


def imported(kind, source, out, *options):
    """The import's words, where it went well."""
    done = run("import", kind, source, out, *WHAT, *options)
    assert done.exit_code == 0, done.output
    return done.output


def refused(kind, source, out, *options):
    """Its one line, where it did not."""
    done = run("import", kind, source, out, *WHAT, *options)
    assert done.exit_code == 2 and "Traceback" not in done.output, done.output
    first = done.output.splitlines()[0]
    assert first.startswith("error: "), done.output
    return first


def row(folder):
    """What the models see of a record."""
    return observe(read_record(folder))


def info(folder):
    return read_record(folder).info


def load(t_s, begin_s=60.0, end_s=240.0):
    """Watts of a node that trains from one moment to the other, with the noise of a meter."""
    t_s = np.asarray(t_s, float)
    noise = np.random.default_rng(3).normal(0, 3, len(t_s))
    return np.where((t_s >= begin_s) & (t_s < end_s), BUSY_W, IDLE_W) + noise


def iso(at_s, hours=0.0, form="%Y-%m-%dT%H:%M:%S.%f"):
    zone = UTC if not hours else timezone(timedelta(hours=hours))
    return datetime.fromtimestamp(ZERO_S + at_s, zone).strftime(form)


def between(at_s=60.0, to_s=240.0):
    return ("--start", f"{iso(at_s)}+00:00", "--stop", f"{iso(to_s)}+00:00")


def expected_j(lasts_s=180.0):
    return BUSY_W * lasts_s
