"""Changes of an Iceberg table's metadata by hand, as another writer commits them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["edit"]


def edit(place: str | Path, act: Callable[[dict[str, Any]], object]) -> None:
    """Commit what ``act`` makes of the newest metadata of a table in a folder of Hadoop's catalog."""
    folder = Path(place) / "metadata"
    number = int((folder / "version-hint.text").read_text())
    body = json.loads((folder / f"v{number}.metadata.json").read_text())
    act(body)
    (folder / f"v{number + 1}.metadata.json").write_text(json.dumps(body))
    (folder / "version-hint.text").write_text(str(number + 1))
