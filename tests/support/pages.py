"""Tables of the documentation."""

from __future__ import annotations

from pathlib import Path

FEATURES = Path(__file__).parents[2] / "docs" / "reference" / "features.md"


def matrix(title: str) -> list[dict[str, str]]:
    """The first table under a title of features.md, a mapping from column to cell for each row."""
    section = FEATURES.read_text().split(f"## {title}\n")[1].split("\n## ")[0].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]
