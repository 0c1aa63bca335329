"""Put the papers' numbers next to ours."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.report.papers.rows import verdict_counts
from joulecast.report.papers.write import papers, write_papers


def main(
    own_experiments: list[Path],
    profile_experiments: list[Path],
    published: list[Path],
    simulator: Path,
    partition: Path,
    tuning: Path,
    metered: Path,
    tables: Path,
) -> None:
    found = papers(
        simulator=simulator,
        partition=partition,
        tuning=tuning,
        metered=metered,
        published=published[0].parent,
        profile_experiments=profile_experiments,
        own_experiments=own_experiments,
    )
    print(verdict_counts(write_papers(tables / "papers", found)).to_string())


if __name__ == "__main__":
    run_script(snakemake, main)
