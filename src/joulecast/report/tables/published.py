"""Published numbers. They are in data files with paper, place and setting, and never in code."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from joulecast.runs.files.reading import read_yaml, validated

_FIELDS = ("journal", "booktitle", "volume", "number", "pages", "publisher", "year", "doi", "url")


class Citation(BaseModel):
    """Bibliographic data of one paper.

    ``authors`` are written family name first (``Wei, Jia``). ``left_out`` says which data could not be
    verified. It is empty if all data are there.
    """

    model_config = ConfigDict(extra="forbid")

    key: str
    kind: Literal["article", "inproceedings"]
    title: str
    authors: list[str] = []
    journal: str | None = None
    booktitle: str | None = None
    volume: int | None = None
    number: int | None = None
    pages: str | None = None
    publisher: str | None = None
    year: int | None = None
    doi: str | None = None
    url: str | None = None
    left_out: str = ""

    @property
    def text(self) -> str:
        """The citation in one line."""
        names = "; ".join(self.authors)
        place = self.journal or self.booktitle
        if self.volume is not None:
            place = f"{place} {self.volume}" + ("" if self.number is None else f"({self.number})")
        pages = None if self.pages is None else f"pp. {self.pages}"
        where = ", ".join(str(p) for p in (place, pages, self.year) if p is not None)
        doi = None if self.doi is None else f"doi:{self.doi}"
        parts = [f"{names}: {self.title}" if names else self.title, where, doi]
        return ". ".join(part for part in parts if part)

    @property
    def bibtex(self) -> str:
        """The BibTeX entry, with the fields that are known."""
        fields = {"title": f"{{{self.title}}}"}
        if self.authors:
            fields["author"] = " and ".join(self.authors)
        known = {name: getattr(self, name) for name in _FIELDS}
        fields |= {name: str(value) for name, value in known.items() if value is not None}
        if "pages" in fields:
            fields["pages"] = fields["pages"].replace("-", "--")
        lines = [f"  {name} = {{{value}}}" for name, value in fields.items()]
        return f"@{self.kind}{{{self.key},\n" + ",\n".join(lines) + "\n}"


class Tolerance(BaseModel):
    """The largest difference from a published number that still counts as reproduced."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    absolute: float = Field(0.0, ge=0)
    relative_percent: float = Field(0.0, ge=0)
    because: str

    def around(self, published: float) -> float:
        """The tolerance in the unit of the published number: the larger of the absolute and the relative
        one."""
        return max(self.absolute, self.relative_percent / 100 * abs(published))

    def __str__(self) -> str:
        parts = [f"{self.absolute:g}"] if self.absolute or not self.relative_percent else []
        parts += [f"{self.relative_percent:g} %"] if self.relative_percent else []
        return f"{' or '.join(parts)}: {self.because}"


class FromPaper(BaseModel):
    """The common part of all files of published numbers: the paper, and whether our setting is the same.

    ``claims`` is a sentence with the numbers of the same file in braces (``{energy_saving_percent[0]}``).
    ``tolerances`` has the tolerance of each kind of number.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    citation: Citation
    claims: str
    where: str
    setting: str
    comparable: bool
    not_comparable_because: str = ""
    tolerances: dict[str, Tolerance]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of ``config/published``.

        Raises:
            JoulecastError: the file is missing, or has wrong keys.
        """
        return validated(TypeAdapter(cls), read_yaml(path, "file of published numbers"), str(path))

    @property
    def paper(self) -> str:
        """The paper in one line."""
        return self.citation.text

    @property
    def claim(self) -> str:
        """The paper's claim, in one sentence with the published numbers."""
        return self.claims.format(**self.model_dump())

    @model_validator(mode="after")
    def _claims_what_it_prints(self) -> Self:
        try:
            _ = self.claim
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"claims: no such number in this file: {error}") from error
        return self


class PublishedErrors(FromPaper):
    """Errors of several models as one paper gives them, in percent."""

    metric: str
    error_percent: dict[str, float]
    percentage_points_over_mc2: dict[str, float] = {}

    def implied(self, rival: str) -> tuple[float, str]:
        """Error of a rival in percent, which the paper does not print: the sum of MC2's error and the printed
        percentage points. Also this sum in words."""
        ours, points = self.error_percent["MC2"], self.percentage_points_over_mc2[rival]
        return round(ours + points, 2), f"computed from the {self.where}: {ours:g} + {points:.2f}"


class PublishedPotential(BaseModel):
    """The numbers of one workload in figure 1 of the Zeus paper."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    batch_size_only: float
    power_limit_only: float
    both: float
    batch_size: int = Field(ge=1)
    power_limit_w: int = Field(ge=1)


class PublishedReproduction(BaseModel):
    """The numbers of a reproduction, and the numbers of the authors' simulator in the same setting: energy
    and time by GPU."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    paper: str
    target: float
    recurrences: int
    energy_saving_percent: tuple[float, float]
    simulator: dict[str, dict[str, tuple[float, float]]]


class PublishedTuning(FromPaper):
    """The published numbers of Zeus and of its reproduction."""

    potential: dict[str, PublishedPotential]
    energy_saving_percent: tuple[float, float]
    time_saving_percent_up_to: float
    reproduction: PublishedReproduction
