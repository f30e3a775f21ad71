"""Row ids and row commit versions: what a rewrite must do so that each row keeps its own (protocol: Row Tracking).

A row's id is stored in its file, or else follows from the file's ``baseRowId`` and the row's position. The version that
last changed the row is stored too, or else is the file's ``defaultRowCommitVersion``. A rewrite moves rows, so it
stores both. Even so, the new file gets a fresh base and default, for rows that store none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import integer
from dv_maintenance.tables.delta.log.actions import Action, Metadata, Protocol

DOMAIN: Final = "delta.rowTracking"
PRESERVED: Final = {"delta.rowTracking.preserved": "true"}
"""Tags in the commitInfo of a commit that kept the id of every row."""

_FEATURE: Final = "rowTracking"
_ENABLED: Final = "delta.enableRowTracking"
_SUSPENDED: Final = "delta.rowTrackingSuspended"
_ROW_ID: Final = "delta.rowTracking.materializedRowIdColumnName"
_COMMIT_VERSION: Final = "delta.rowTracking.materializedRowCommitVersionColumnName"
# Under IcebergCompatV3, these columns have the field ids that Iceberg reserves for them; otherwise they have none.
_ICEBERG_IDS: Final = (2147483540, 2147483539)


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """Names of the two columns in data files, and their field ids if they have any."""

    row_id: str
    commit_version: str
    field_ids: tuple[int, int] | None = None


def assigns_row_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether new files need a base row id, even if row tracking is not enabled yet."""
    return _FEATURE in protocol.features("writer") and not _is_true(metadata, _SUSPENDED)


def stored_columns(protocol: Protocol, metadata: Metadata) -> StoredColumns | None:
    """The columns that a rewrite must store; ``None`` if rows are not tracked.

    Raises
    ------
    DamagedTableError : rows are tracked, but the table does not name the columns.
    """
    if not (_FEATURE in protocol.features("writer") and _is_true(metadata, _ENABLED)):
        return None
    names = [metadata.configuration.get(key) for key in (_ROW_ID, _COMMIT_VERSION)]
    if not (names[0] and names[1]):
        raise DamagedTableError(f"rows are tracked ({_ENABLED}), but {_ROW_ID} or {_COMMIT_VERSION} is missing")
    ids = _ICEBERG_IDS if "icebergCompatV3" in protocol.features("writer") else None
    return StoredColumns(names[0], names[1], ids)


def highest_row_id(files: pa.Table) -> int:
    """The highest row id that follows from the base of a live file; -1 if none has one. ``files``: schema FILES."""
    rows = pc.max_element_wise(pc.fill_null(files["physical_rows"], integer(1)), integer(1))
    found = pc.max(pc.add(files["base_row_id"], rows)).as_py()
    return -1 if found is None else int(found) - 1


def numbered(adds: Sequence[Action], configuration: str | None, version: int, used: int = -1) -> list[Action]:
    """New files with row ids of their own, followed by the domain metadata that records them as taken.

    ``version`` commits the files. ``configuration``: that of DOMAIN at the version before. ``used``: the highest row id
    of live files, in case the domain is lost: checkpoints of early releases of delta-kernel-rs leave out all domains
    (https://github.com/delta-io/delta-kernel-rs/issues/1716).

    Raises
    ------
    DamagedTableError : the high-water mark can't be read, or the statistics of a file have no ``numRecords``.
    """
    mark = max(high_water_mark(configuration), used)
    made: list[Action] = []
    for action in adds:
        add = action["add"]
        rows = orjson.loads(add.get("stats") or "{}").get("numRecords")
        if type(rows) is not int:
            raise DamagedTableError(f"the new file {add['path']} does not say how many rows it has")
        made.append({"add": {**add, "baseRowId": mark + 1, "defaultRowCommitVersion": version}})
        mark += rows
    if made:
        text = orjson.dumps({"rowIdHighWaterMark": mark, "domainName": DOMAIN}).decode()
        made.append({"domainMetadata": {"domain": DOMAIN, "configuration": text, "removed": False}})
    return made


def high_water_mark(configuration: str | None) -> int:
    """The highest row id assigned so far; -1 before the first. ``configuration``: that of DOMAIN.

    Raises DamagedTableError if it can't be read.
    """
    if configuration is None:
        return -1
    try:
        mark = orjson.loads(configuration)["rowIdHighWaterMark"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        mark = None
    if type(mark) is not int:
        raise DamagedTableError(f"the domain {DOMAIN} has no high-water mark: {configuration[:200]!r}")
    return mark


def _is_true(metadata: Metadata, key: str) -> bool:
    return metadata.configuration.get(key, "false").lower() == "true"
