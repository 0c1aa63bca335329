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
    table, of_papers = papers(
        tables,
        simulator=simulator,
        partition=partition,
        tuning=tuning,
        metered=metered,
        published=published[0].parent,
        profile_experiments=profile_experiments,
        own_experiments=own_experiments,
    )
    write_papers(tables / "papers", table, of_papers)
    print(verdict_counts(table).to_string())


if __name__ == "__main__":
    run_script(snakemake, main)
