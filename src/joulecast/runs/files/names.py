"""Checks names and addresses from configurations and from data of others.

joulecast itself gives none of them to a shell. But Snakemake takes a path as a pattern, in which braces have
a meaning, and writes it into the command lines of its jobs. A name becomes a file below a folder. An address
appears in messages, logs and recorded campaigns, so it must not contain a password.
"""

import re

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
"""Allowed names of files, folders and wildcards of the workflow."""

_UNFIT = re.compile(r"""[^\w ./+=@,:~-]""")
_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*://)([^\s'\"<>]*)", re.IGNORECASE)


def plain_path(path: str) -> str:
    """``path`` itself.

    Raises:
        ValueError: the path has a character with a meaning in a shell or a pattern, or begins like an option.
    """
    unfit = sorted(set(_UNFIT.findall(path)))
    if unfit:
        raise ValueError(
            f"a path may not hold {' '.join(ascii(c) for c in unfit)}: letters, digits, spaces and "
            "_ . / + = @ , : ~ - only"
        )
    if path.startswith(("-", "~")) or path != path.strip():
        raise ValueError("a path may not begin with `-`, `~` or a space, or end with a space")
    return path


def simple_name(name: str) -> str:
    """``name`` itself.

    Raises:
        ValueError: :data:`NAME` does not allow it.
    """
    if not re.fullmatch(NAME, name):
        raise ValueError(f"{name!r} is no name: letters, digits and _ . - only")
    return name


def without_secrets(text: str) -> str:
    """``text``, with every address in it shortened to scheme, host and path."""

    def cut(found: re.Match[str]) -> str:
        scheme, rest = found.groups()
        rest = rest.rsplit("@", 1)[-1]
        return scheme + re.split(r"[?#]", rest, maxsplit=1)[0]

    return _ADDRESS.sub(cut, text)
