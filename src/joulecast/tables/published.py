"""Published numbers: data files with paper, place and setting, never constants in code."""

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from joulecast.errors import JoulecastError


class FromPaper(BaseModel):
    """What every file of published numbers says: whose they are, and whether our setting is the same."""

    model_config = ConfigDict(extra="forbid")

    paper: str
    where: str
    setting: str
    comparable: bool
    not_comparable_because: str = ""


class PublishedErrors(FromPaper):
    """Errors of several models as one paper gives them, in percent."""

    metric: str
    error_percent: dict[str, float]
    percentage_points_over_mc2: dict[str, float] = {}


Published = TypeVar("Published", bound=BaseModel)


def read_published_file(kind: type[Published], path: Path) -> Published:
    """Read one file of ``config/published`` as what it has to be.

    Raises:
        JoulecastError: missing, or with wrong keys.
    """
    try:
        return kind.model_validate(yaml.safe_load(path.read_text()))
    except FileNotFoundError:
        raise JoulecastError(f"{path}: no such file of published numbers") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise JoulecastError(f"{path}: {key}: {first['msg']}") from None


def read_published(path: Path) -> PublishedErrors:
    """Read one file of ``config/published``.

    Raises:
        JoulecastError: missing, or with wrong keys.
    """
    return read_published_file(PublishedErrors, path)
