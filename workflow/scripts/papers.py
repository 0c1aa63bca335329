"""Put the papers' numbers next to ours."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.report.papers.collect import PaperFiles, papers
from joulecast.report.papers.rows import verdict_counts
from joulecast.report.papers.write import write_papers


def main(
    own_experiments: list[Path],
    profile_experiments: list[Path],
    published: list[Path],
    metered: list[Path],
    tables: list[Path],
) -> None:
    folder = tables[0].parent
    files = PaperFiles(
        tables=folder,
        published=published[0].parent,
        metered_tables=metered[0].parent,
        profile_experiments=profile_experiments,
        own_experiments=own_experiments,
    )
    table, of_papers = papers(files)
    write_papers(folder / "papers", table, of_papers)
    print(verdict_counts(table).to_string())


if __name__ == "__main__":
    run_script(snakemake, main)
