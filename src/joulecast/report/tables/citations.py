"""What a paper is cited by: one line, and an entry of BibTeX. What could not be verified is left out."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

_FIELDS = ("journal", "booktitle", "volume", "number", "pages", "publisher", "year", "doi", "url")


class Citation(BaseModel):
    """Bibliographic data of one paper.

    ``authors`` are written family name first (``Wei, Jia``); ``left_out`` says which data could not be
    verified, and is empty if all are there.
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
        """The entry, with the fields that are known."""
        fields = {"title": f"{{{self.title}}}"}
        if self.authors:
            fields["author"] = " and ".join(self.authors)
        known = {name: getattr(self, name) for name in _FIELDS}
        fields |= {name: str(value) for name, value in known.items() if value is not None}
        if "pages" in fields:
            fields["pages"] = fields["pages"].replace("-", "--")
        lines = [f"  {name} = {{{value}}}" for name, value in fields.items()]
        return f"@{self.kind}{{{self.key},\n" + ",\n".join(lines) + "\n}"
