"""What a commit changes in a table's metadata: a new snapshot of a branch, snapshots and references that go.

Format: Iceberg specification, Table Metadata. The document of the version before is edited, so that fields that are
unknown here survive. A REST catalog edits its own, and gets the same change as updates with requirements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dv_maintenance.tables.iceberg.log.metadata import MAIN, Metadata

_PREVIOUS: Final = "write.metadata.previous-versions-max"
_STATISTICS: Final = ("statistics", "partition-statistics")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the metadata.

    snapshot : the new snapshot as the metadata file has it; ``None`` without one.
    branch : which it becomes the newest of.
    removed : ids of snapshots that go, with their statistics.
    refs : names of branches and tags that go.
    """

    snapshot: Mapping[str, Any] | None = None
    branch: str = MAIN
    removed: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()


def edited(before: Metadata, location: str, change: Change, now: int) -> dict[str, Any]:
    """The document of the next version.

    location : of the metadata file before, as the catalog spells it.
    now : epoch milliseconds.
    """
    body = dict(before.body)
    log = [*(body.get("metadata-log") or []), {"timestamp-ms": body["last-updated-ms"], "metadata-file": location}]
    most = before.properties.get(_PREVIOUS, "")
    body["metadata-log"] = log[-max(1, int(most) if most.isdigit() else 100) :]
    body["last-updated-ms"] = max(now, body["last-updated-ms"])
    refs = {name: each for name, each in (body.get("refs") or {}).items() if name not in change.refs}
    gone = set(change.removed)
    snapshots = [each for each in body.get("snapshots") or [] if each["snapshot-id"] not in gone]
    if change.snapshot is not None:
        number = change.snapshot["snapshot-id"]
        snapshots.append(dict(change.snapshot))
        refs[change.branch] = {"type": "branch", **refs.get(change.branch, {}), "snapshot-id": number}
        if "sequence-number" in change.snapshot:
            body["last-sequence-number"] = change.snapshot["sequence-number"]
        if "added-rows" in change.snapshot:
            body["next-row-id"] = change.snapshot["first-row-id"] + change.snapshot["added-rows"]
        if change.branch == MAIN:
            body["current-snapshot-id"] = number
            entry = {"timestamp-ms": change.snapshot["timestamp-ms"], "snapshot-id": number}
            body["snapshot-log"] = [*(body.get("snapshot-log") or []), entry]
    body["snapshots"], body["refs"] = snapshots, refs
    if gone:
        body["snapshot-log"] = _log_without(body.get("snapshot-log") or [], gone)
        for name in _STATISTICS:
            if body.get(name):
                body[name] = [each for each in body[name] if each["snapshot-id"] not in gone]
    return body


def _log_without(log: list[Any], gone: set[int]) -> list[Any]:
    """What was the newest version when, as far back as every snapshot exists: a gap would give wrong answers."""
    kept: list[Any] = []
    for each in log:
        kept = [] if each["snapshot-id"] in gone else [*kept, each]
    return kept
