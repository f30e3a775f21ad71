"""Make a change of the metadata the table's newest version, if nobody else made another one.

Hadoop's catalog has the next number for that, a SQL catalog the row of the table, Glue the version of its entry, a REST
catalog requirements that its server checks, and a catalog of a Spark session Java's own commit.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from dv_maintenance.errors import (
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
)
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.iceberg.catalog import IcebergCatalogTable
from dv_maintenance.tables.iceberg.commit.change import Change, edited
from dv_maintenance.tables.iceberg.layout import METADATA
from dv_maintenance.tables.iceberg.log.metadata import Metadata, load_metadata
from dv_maintenance.tables.iceberg.log.pointer import HINT, SPELLINGS, hadoop_number
from dv_maintenance.tables.iceberg.session_catalog import SessionCatalogTable
from dv_maintenance.tables.new_files import NewFiles, create_once
from dv_maintenance.tables.publish import Overtaken
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.pointed import PointedTable

_CODEC: Final = "write.metadata.compression-codec"
_DELETES: Final = "write.metadata.delete-after-commit.enabled"
_NUMBER: Final = re.compile(r"(\d+)-")


def swap(layout: Layout, before: Metadata, change: Change) -> None:
    """Commit a change on top of ``before``.

    Raises
    ------
    Overtaken : the table has another version by now; nothing was committed.
    StorageDeniedError, RefusedError : nothing was committed.
    StorageUnavailableError : it is unknown whether the change was committed.
    """
    if isinstance(layout.storage, Rehearsal):
        return None  # a catalog would commit
    if layout.catalog is None:
        return _into_folder(layout, before, change)
    if isinstance(layout.catalog, SessionCatalogTable):
        location = layout.catalog.newest()
        if layout.path(location) != before.path:
            raise Overtaken("the catalog names another metadata file, building on it")
        return layout.catalog.replace(location, edited(before, location, change, epoch_millis()))
    if isinstance(layout.catalog, IcebergCatalogTable) and layout.catalog.kind() == "rest":
        return layout.catalog.commit(before.uuid, before.refs, change)
    return _into_catalog(layout, layout.catalog, before, change)


def _into_folder(layout: Layout, before: Metadata, change: Change) -> None:
    number = hadoop_number(before.path)
    assert number is not None, "other tables are refused"
    location = f"{before.location.rstrip('/')}/{before.path}"
    document = edited(before, location, change, epoch_millis())
    body = _packed(before, document)
    spelling = SPELLINGS[1] if body[:2] == b"\x1f\x8b" else SPELLINGS[0]
    if any(layout.storage.exists(f"{METADATA}/{each.format(number + 1)}") for each in SPELLINGS):
        raise Overtaken(f"version {number + 1} already exists, building on it")

    def unsure(path: str, why: str) -> StorageUnavailableError:
        return StorageUnavailableError(f"{path}: {why}", table=layout.uri)

    # Another table that was created here meanwhile, often with as many versions, would become this one.
    try:
        now = load_metadata(layout)
    except DvMaintenanceError as error:
        raise Overtaken(f"the table can't be read right before the commit: {error.message}") from error
    if (now.path, now.uuid) != (before.path, before.uuid):
        raise Overtaken(f"{now.path} is another version, or another table's")
    if not create_once(layout.storage, f"{METADATA}/{spelling.format(number + 1)}", body, unsure):
        raise Overtaken(f"version {number + 1} already exists, building on it")
    # Readers check it against the files: a stale one only costs them requests.
    with suppress(StorageError):
        layout.storage.put(HINT, str(number + 1).encode())
    _delete_old(layout, before, document)


def _into_catalog(
    layout: Layout, catalog: IcebergCatalogTable | PointedTable, before: Metadata, change: Change
) -> None:
    location = catalog.newest()
    if layout.path(location) != before.path:
        raise Overtaken("the catalog names another metadata file, building on it")
    document = edited(before, location, change, epoch_millis())
    body = _packed(before, document)
    match = _NUMBER.match(location.rpartition("/")[2])
    packed = ".gz" if body[:2] == b"\x1f\x8b" else ""
    new = f"{layout.metadata_folder(before)}/{int(match[1]) + 1 if match else 1:05d}-{uuid4()}{packed}.metadata.json"
    files = NewFiles(layout.storage)
    files.put(layout.path(new), body)
    try:
        catalog.move_pointer(location, new)
    except (Overtaken, StorageDeniedError, RefusedError):
        files.discard()
        raise
    _delete_old(layout, before, document)


def _delete_old(layout: Layout, before: Metadata, document: Mapping[str, Any]) -> None:
    """Delete the metadata files that left the log, if the table wants that, as far as the storage allows."""
    if before.properties.get(_DELETES, "false").strip().lower() != "true":
        return
    kept = {each["metadata-file"] for each in document["metadata-log"]}
    old = [each["metadata-file"] for each in before.body.get("metadata-log") or () if each["metadata-file"] not in kept]
    with suppress(StorageError):  # a vacuum finds them
        layout.storage.delete([layout.path(each) for each in old])


def _packed(before: Metadata, body: object) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    wanted = before.properties.get(_CODEC, "none").strip().lower()
    return gzip.compress(text, mtime=0) if wanted == "gzip" else text
