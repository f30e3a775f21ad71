"""Live files with their adds from the log, for commits that give them new deletion vectors (DVs)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import strings
from dv_maintenance.tables.delta.commit.live_file import LiveFile
from dv_maintenance.tables.delta.log.replay import replay

if TYPE_CHECKING:
    from dv_maintenance.dv import DvDescriptor
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.capabilities import FileNumbers
    from dv_maintenance.tables.delta.log.actions import Action
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
    from dv_maintenance.tables.model import FileKey
    from dv_maintenance.tables.rows import DeletedRows

# The fields of an add that the next add of the same file repeats.
_ADD: Final = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "stats",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
    "clusteringProvider",
)
_MAPS: Final = ("partitionValues", "tags")
_TIGHT: Final = "tightBounds"


@dataclass(frozen=True, slots=True)
class LiveAdd:
    """A live file with its ``add``."""

    add: Mapping[str, Any]
    file: LiveFile

    @classmethod
    def of(cls, add: Mapping[str, Any]) -> LiveAdd:
        return cls(add, LiveFile.from_add(add))

    @property
    def physical_rows(self) -> int | None:
        with suppress(orjson.JSONDecodeError, AttributeError):
            rows = orjson.loads(self.add.get("stats") or "{}").get("numRecords")
            return rows if type(rows) is int else None
        return None


def live_adds(storage: Storage, base: DeltaSnapshot, deleted: Sequence[DeletedRows]) -> dict[FileKey, LiveAdd]:
    """The adds of the files that lose rows; keys that are not live are missing."""
    if not deleted:
        return {}
    wanted = {each.key for each in deleted}
    adds = replay(storage, base.segment, adds=_ADD).adds
    chosen = adds.filter(pc.is_in(adds["path"], strings(sorted({key.path for key in wanted}))))
    found = {}
    for row in chosen.to_pylist():
        add = {key: dict(value) if key in _MAPS and value is not None else value for key, value in row.items()}
        if add["deletionVector"] is not None:
            present = {key: value for key, value in add["deletionVector"].items() if value is not None}
            add["deletionVector"] = present
        live = LiveAdd.of(add)
        if live.file.key in wanted:
            found[live.file.key] = live
    return found


def shrunk(live: LiveAdd, rows: int | None, descriptor: DvDescriptor) -> Action:
    """The next add of a file that gets a larger DV. ``rows``: physical rows, in place of those in its statistics.

    Raises
    ------
    DamagedTableError : the number of rows of the file is unknown.
    """
    return _again(live, _stats(live, rows, wide=True), data_change=True, deletionVector=descriptor.to_json())


def recounted(live: LiveAdd, numbers: FileNumbers) -> Action:
    """The same file with what it really holds."""
    dv = live.add.get("deletionVector")
    changed = {} if dv is None else {"deletionVector": {**dv, "cardinality": numbers.deleted}}
    stats = _stats(live, numbers.rows, wide=dv is not None)
    return _again(live, stats, data_change=False, size=numbers.size, **changed)


def _again(live: LiveAdd, stats: str, *, data_change: bool, **changed: Any) -> Action:
    known = {key: live.add[key] for key in _ADD if live.add.get(key) is not None}
    return {"add": {**known, "dataChange": data_change, "stats": stats, **changed}}


def _stats(live: LiveAdd, rows: int | None, *, wide: bool) -> str:
    """The statistics of a file, with this number of rows. A DV requires ``numRecords``, and the bounds are no longer
    tight (``wide``).

    Numbers keep all their digits: a float would lose some digits of a decimal.
    """
    try:
        body = json.loads(live.add.get("stats") or "{}", parse_float=_verbatim, parse_int=_verbatim)
    except json.JSONDecodeError:
        body = {}  # unreadable statistics are useless
    if not isinstance(body, dict):
        body = {}
    if rows is not None:
        body = {**body, "numRecords": rows}
    elif "numRecords" not in body:
        raise DamagedTableError(f"the number of rows of {live.file.path} is unknown")
    return orjson.dumps({**body, _TIGHT: False} if wide else body).decode()


def _verbatim(number: str) -> orjson.Fragment:
    return orjson.Fragment(number)
