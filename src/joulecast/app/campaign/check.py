"""Checks of all that a campaign needs before its first run; each error is one line."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from joulecast.app.campaign.config import Config
from joulecast.app.campaign.runs import campaign_runs
from joulecast.errors import JoulecastError
from joulecast.measure.power.meter_registry import METERS
from joulecast.measure.power.meters import MeteredNodes, MeterUnavailable, opened_in_time
from joulecast.runs.files.shipped import PLATFORMS, shipped_folder
from joulecast.runs.platforms import find_platform, recorded_for
from joulecast.runs.provenance import usable_cores
from joulecast.runs.spec import RunSpec, check_cores

_WORKFLOW = Path("workflow/rules/common.smk")
"""A file that identifies the folder of this workflow."""


def require_campaign(
    config: Config, platforms: Path = PLATFORMS, project: Path | None = None
) -> list[RunSpec]:
    """The runs of a campaign, after a check of all files and folders in its configuration.

    Args:
        platforms: folder of the user's own platform files.
        project: folder that contains the configuration's kept measurements. ``None``: they are not checked.

    Raises:
        JoulecastError: an error of :func:`~joulecast.app.campaign.runs.campaign_runs`; or submissions or kept
            measurements are missing. The error names the key, and says what to do.
    """
    runs = campaign_runs(config, platforms)
    for folder in config.evaluation.imports:
        if not Path(folder).is_dir():
            raise JoulecastError(f"evaluation.imports: {folder} is no folder")
    kept = {
        "simulator.emulated_network": config.simulator.emulated_network,
        "simulator.real_training": config.simulator.real_training,
        "simulator.gpu_steps": config.simulator.gpu_steps,
        "partition.graphs": config.partition.graphs,
    }
    for key, named in kept.items():
        if project is not None and named is not None and not (project / named).is_dir():
            raise JoulecastError(
                f"{key}: {project / named} is no folder; leave the key out for that of joulecast"
            )
    return runs


def require_host(config: Config, runs: Sequence[RunSpec]) -> None:
    """If the campaign runs on this host, check that the host has the cores and the GPU for the runs.

    Raises:
        JoulecastError: the host has fewer cores than the ranks of a run need, or no GPU.
    """
    if recorded_for(config.platform) is not None:
        return
    for run in runs:
        if run.platform.hosts == 1:
            check_cores(run, run.ranks, usable_cores())
    if config.training.device != "cuda":
        return
    # This is imported here, because the import takes seconds, and only campaigns on GPUs need it.
    import torch

    if not torch.cuda.is_available():
        raise JoulecastError(
            "training.device: cuda, but torch sees no GPU on this host; run the campaign where there is one "
            "(docs/how-to/run-on-a-cluster.md), or set training.device to cpu"
        )


def remarks(config: Config, runs: list[RunSpec]) -> list[str]:
    """Remarks on a valid configuration: the runs, and the meters that this host lacks."""
    trained = [run for run in runs if run.network is not None]
    networks = sorted({str(run.network) for run in trained})
    counts = ", ".join(f"{count:,}" for count in sorted({run.nodes for run in runs}))
    lines = [
        f"{len(runs):,} runs ({len(trained):,} trainings of {', '.join(networks) or 'no network'}) on "
        f"{counts} {'node' if counts == '1' else 'nodes'} of platform {config.platform}; "
        f"results in {config.results}"
    ]
    if recorded_for(config.platform) is not None:
        return [f"{lines[0]}; the runs are replayed, nothing is measured"]
    facts = find_platform(config.platform)
    power = config.power
    nodes = MeteredNodes(
        "this host", {}, 1.0, facts.idle_w, facts.full_w, power.sysfs_root, tuple(power.command)
    )
    for name in config.power.meters:
        if name == "command" and power.command:
            lines.append(
                "meter command: not tried, as a check runs no program of the configuration; "
                "`joulecast meters --config FILE` runs it"
            )
            continue
        try:
            opened_in_time(name, METERS[name], nodes)
        except MeterUnavailable as missing:
            if missing.not_applicable and len(config.power.meters) > 1:
                continue
            lines.append(
                f"meter {name}: not on this host: {missing.reason}; to get it: {missing.remedy}"
            )
    return lines


def dry_run(project: Path, file: Path) -> int:
    """Number of jobs that Snakemake still has to run for a configuration file.

    Args:
        project: folder of the Snakefile.

    Raises:
        JoulecastError: Snakemake is not installed; or it rejects the file, and the error contains its
            message.
    """
    if find_spec("snakemake") is None:
        raise JoulecastError("Snakemake is not installed here; install joulecast[campaign]")
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--cores", "1"]
    command += ["--snakefile", str(project / "Snakefile"), "--configfile", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    if done.returncode:
        reasons = [line for line in said if line.strip() and not line.startswith((" ", "Using "))]
        raise JoulecastError(f"{file}: its dry run fails: {' '.join(reasons[-3:])}")
    totals = [line.split()[1] for line in said if line.startswith("total ")]
    return int(totals[0]) if totals else 0


def project_here() -> Path | None:
    """Folder of the workflow: the working directory, or the checkout; ``None`` if neither has it."""
    folders = (Path.cwd(), shipped_folder())
    return next((folder for folder in folders if (folder / _WORKFLOW).is_file()), None)
