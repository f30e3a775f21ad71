"""The columns that files are ordered by: a tag of each ``add``, kept when a delete gives the file a deletion vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from dv_maintenance.tables.delta.commit.live_file import LiveFile
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

# Not delta-spark's ZCUBE tags: those are promises to its own clustering.
_TAG: Final = "DVM_ORDERED_BY"


def order_tags(columns: Sequence[str], sources: Sequence[LiveFile]) -> Mapping[str, str]:
    """Tags of a new file with rows in that order. Without ``columns`` rows keep the order that they had, so a file that
    takes the place of one other is ordered as that was.
    """
    if columns:
        return {_TAG: orjson.dumps(list(columns)).decode()}
    tags: Mapping[str, str] = sources[0].rest.get("tags", {}) if len(sources) == 1 else {}
    return {name: tags[name] for name in (_TAG,) if name in tags}


def ordered_by(snapshot: DeltaSnapshot) -> list[tuple[str, ...]]:
    """See ``OrderableTable.ordered_by``."""
    return [_columns(dict(tags or ()).get(_TAG)) for tags in snapshot.files["tags"].to_pylist()]


def _columns(text: str | None) -> tuple[str, ...]:
    try:
        names = orjson.loads(text or "[]")
    except orjson.JSONDecodeError:
        return ()
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
