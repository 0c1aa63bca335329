"""The house in one picture and one table, from the code; ``python tests/house.py`` writes them down.

The picture has an arrow from a room to each room that it imports, without those that follow from others.
"""

import ast
import sys
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/joulecast"
PAGE = ROOT / "CONTRIBUTING.md"
_BEGIN, _END = "<!-- made by tests/house.py -->\n", "<!-- end -->\n"


def rooms() -> dict[str, str]:
    """Names of the rooms, with the first paragraph of their docstrings."""
    found = {}
    for file in sorted([*SOURCE.glob("*/__init__.py"), *SOURCE.glob("[!_]*.py")]):
        room = file.parent.name if file.stem == "__init__" else file.stem
        docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
        found[room] = " ".join(docstring.split("\n\n")[0].split())
    return found


def _imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("joulecast."):
            names.add(str(node.module).split(".")[1])
    return names


def imports() -> networkx.DiGraph:
    """Imports between rooms, without those that follow from others; ``errors`` is imported by all."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(rooms())
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in graph:
            graph.add_edges_from((room, other) for other in _imported(file) & graph.nodes - {room})
    graph.remove_node("errors")
    return networkx.transitive_reduction(graph)


def picture() -> str:
    """The picture, as Mermaid."""
    lines = [f"    {a} --> {b}" for a, b in sorted(imports().edges)]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"]) + "\n"


def table() -> str:
    """The rooms and their subjects, as Markdown."""
    rows = [f"| `{room}` | {subject} |" for room, subject in rooms().items()]
    return (
        "\n".join(["| room (package of `src/joulecast/`) | subject |", "|---|---|", *rows]) + "\n"
    )


def page(text: str) -> str:
    """A page whose marked part is made anew."""
    before, rest = text.split(_BEGIN)
    return f"{before}{_BEGIN}{picture()}\n{table()}{_END}{rest.split(_END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    sys.stdout.write(picture())
