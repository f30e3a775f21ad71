"""Which snapshots and references are kept, and why.

Format: Iceberg specification, Snapshot Retention Policy, and the properties ``history.expire.*``. A snapshot of a
branch is kept until it has been *superseded* for longer than the retention: until then a reader may have opened it as
the newest one. Iceberg's own procedures go by the age of the snapshot itself, and keep less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.iceberg.log.metadata import MAIN, Metadata, Ref
from dv_maintenance.tables.iceberg.log.versions import MAX_AGE
from dv_maintenance.tables.reach.needed import Holder, pinned

CURRENT: Final = "in the current snapshot"
RECENT: Final = "in a snapshot that was the newest one inside the retention"
FEW: Final = "in one of the newest snapshots of a branch, which the table keeps at any age"
LOOSE: Final = "in a snapshot of no branch, inside the retention"

_MIN_COUNT: Final = "history.expire.min-snapshots-to-keep"
_REF_AGE: Final = "history.expire.max-ref-age-ms"


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays.

    holders : by snapshot, those of the current one first.
    expired : ids of the other snapshots, oldest first.
    refs : names of branches and tags that are too old.
    """

    holders: Mapping[int, Holder]
    expired: tuple[int, ...]
    refs: tuple[str, ...]


def kept_snapshots(metadata: Metadata, cutoff: int, kept_for: int, now: int, pins: Collection[int]) -> Kept:
    """Divide the snapshots. ``cutoff`` and ``kept_for``: of branches without a retention of their own. All times in
    milliseconds. Raises RefusedError if a setting is not a number.
    """
    found: dict[int, Holder] = {}
    old = [ref.name for ref in metadata.refs.values() if _is_old(metadata, ref, now)]
    order = sorted(metadata.refs.values(), key=lambda ref: ref.name != MAIN)
    for ref in (each for each in order if each.name not in old):
        for number, holder in _of_ref(metadata, ref, cutoff, kept_for, now):
            found.setdefault(number, holder)
    for number in pins:
        found.setdefault(number, Holder(pinned(number, "snapshot")))
    of_refs = {each.id for ref in metadata.refs.values() for each in metadata.ancestors(ref.snapshot)}
    for each in metadata.snapshots.values():
        if each.id not in of_refs and each.timestamp >= cutoff:
            found.setdefault(each.id, Holder(LOOSE, each.timestamp + kept_for))
    gone = [each for each in metadata.snapshots.values() if each.id not in found]
    return Kept(found, tuple(each.id for each in sorted(gone, key=lambda each: each.timestamp)), tuple(old))


def _of_ref(metadata: Metadata, ref: Ref, cutoff: int, kept_for: int, now: int) -> Iterator[tuple[int, Holder]]:
    if ref.name == MAIN:
        yield ref.snapshot, Holder(CURRENT)
    else:
        yield ref.snapshot, Holder(f"in the {'branch' if ref.is_branch else 'tag'} {ref.name}")
    if not ref.is_branch:
        return
    own = _number(metadata, ref.body, "max-snapshot-age-ms")
    if own is not None:
        cutoff, kept_for = now - own, own
    few = _number(metadata, ref.body, "min-snapshots-to-keep")
    few = (_number(metadata, metadata.properties, _MIN_COUNT) or 1) if few is None else few
    superseded: int | None = None
    for count, each in enumerate(metadata.ancestors(ref.snapshot)):
        if superseded is not None:
            if count >= few and superseded < cutoff:
                return
            inside = superseded >= cutoff
            why = (RECENT if ref.name == MAIN else f"inside the retention of the branch {ref.name}") if inside else FEW
            yield each.id, Holder(why, superseded + kept_for if inside else None)
        superseded = each.timestamp if superseded is None else min(superseded, each.timestamp)


def _is_old(metadata: Metadata, ref: Ref, now: int) -> bool:
    most = _number(metadata, ref.body, "max-ref-age-ms")
    most = _number(metadata, metadata.properties, _REF_AGE) if most is None else most
    return ref.name != MAIN and most is not None and metadata.snapshots[ref.snapshot].timestamp < now - most


def _number(metadata: Metadata, settings: Mapping[str, Any], name: str) -> int | None:
    value = settings.get(name)
    if value is None:
        return None
    if not str(value).strip().isdigit():
        raise RefusedError(
            f"{name} is {value!r}, which is not a number",
            table=metadata.location,
            version=metadata.version,
            next_step=f"correct it with the table's engine, as {MAX_AGE}",
        )
    return int(value)
