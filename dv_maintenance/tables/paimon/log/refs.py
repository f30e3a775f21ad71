"""Tags, branches and consumers, which keep snapshots or their files alive.

Format: tags, branches and consumers of Paimon's specification. A tag is a copy of its snapshot with a few
additional fields, and outlives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.documents import Document
from dv_maintenance.tables.paimon.log.snapshots import SnapshotFile, parse_snapshot

_TAG: Final = "tag-"
_CONSUMER: Final = "consumer-"
_BRANCH: Final = "branch-"


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag.

    created : creation time as the file spells it; ``None`` if an older writer did not record it.
    retained : how long the tag is kept, as the file spells it; ``None`` if the file does not say.
    """

    name: str
    snapshot: SnapshotFile
    created: str | None = None
    retained: str | None = None


def tags(layout: Layout) -> dict[str, Tag]:
    """The branch's tags, by name. Costs one listing, and one request per tag.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError : a tag cannot be read. It may keep files alive, so it is not skipped.
        The message names its file.
    """
    found = {}
    for name, document in _documents(layout, f"{layout.own}tag", _TAG):
        created, retained = document.body.get("tagCreateTime"), document.body.get("tagTimeRetained")
        found[name] = Tag(
            name,
            parse_snapshot(document),
            None if created is None else str(created),
            None if retained is None else str(retained),
        )
    return found


def tagged(layout: Layout, version: int) -> SnapshotFile | None:
    """The snapshot of this id that a tag keeps; ``None`` if no tag does. Raises as :func:`tags`."""
    return next((tag.snapshot for tag in tags(layout).values() if tag.snapshot.id == version), None)


def consumers(layout: Layout) -> dict[str, int]:
    """The snapshot that each consumer reads next, by the consumer's id. Raises DamagedTableError as :func:`tags`."""
    return {
        name: document.integer("nextSnapshot")
        for name, document in _documents(layout, f"{layout.own}consumer", _CONSUMER)
    }


def branches(layout: Layout) -> tuple[str, ...]:
    """Names of all branches except the main one, sorted."""
    names = layout.storage.folders("branch")
    return tuple(name[len(_BRANCH) :] for name in names if name.startswith(_BRANCH) and len(name) > len(_BRANCH))


def _documents(layout: Layout, folder: str, prefix: str) -> list[tuple[str, Document]]:
    """The files of a folder whose names have the prefix, each with the rest of its name. Skips files that are deleted
    during the read: they no longer keep anything alive.
    """
    found = []
    for name in sorted(layout.storage.names(folder)):
        rest = name.removeprefix(prefix)
        if not name.startswith(prefix) or not rest:
            continue
        path = f"{folder}/{name}"
        try:
            data = layout.storage.get(path)
        except FileNotFoundError:
            continue
        found.append((rest, Document.parse(layout.uri, path, data)))
    return found
