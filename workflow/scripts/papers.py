"""Put the papers' numbers next to ours."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.report.papers.collect import PaperFiles, papers
from joulecast.report.papers.rows import verdict_counts
from joulecast.report.papers.write import write_papers


def main(
    own_experiments: list[Path],
    profile_experiments: list[Path],
    published_folder: Path,
    tables_folder: Path,
    metered_folder: Path,
) -> None:
    files = PaperFiles(
        tables=tables_folder,
        published=published_folder,
        metered_tables=metered_folder,
        profile_experiments=profile_experiments,
        own_experiments=own_experiments,
    )
    table, of_papers = papers(files)
    write_papers(tables_folder / "papers", table, of_papers)
    print(verdict_counts(table).to_string())


if __name__ == "__main__":
    run_script(snakemake, main)
