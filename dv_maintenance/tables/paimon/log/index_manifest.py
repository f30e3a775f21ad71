"""Index manifests: the deletion vectors of a snapshot, and their index files.

Format: index manifest of Paimon's specification. It holds the whole state, not a change. Besides deletion vectors, it
names hash indexes and global indexes. These are not read, but their files are in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError, located
from dv_maintenance.files.avro.schema import Wanted
from dv_maintenance.storage import plain_uri
from dv_maintenance.tables.paimon.layout import INDEX, Layout
from dv_maintenance.tables.paimon.log.manifests import avro_records
from dv_maintenance.tables.paimon.rows.partitions import Partitions

DELETION_VECTORS: Final = "DELETION_VECTORS"
_VERSION: Final = 1
_WANTED: Final[Wanted] = {
    "_VERSION": None,
    "_KIND": None,
    "_PARTITION": None,
    "_BUCKET": None,
    "_INDEX_TYPE": None,
    "_FILE_NAME": None,
    "_FILE_SIZE": None,
    "_ROW_COUNT": None,
    "_DELETIONS_VECTORS_RANGES": {"f0": None, "f1": None, "f2": None, "_CARDINALITY": None},
    "_EXTERNAL_PATH": None,
}


@dataclass(frozen=True, slots=True)
class DvEntry:
    """One DV.

    path : path of its index file in the table's storage.
    offset : bytes from the start of the index file.
    length : bytes, as defined by ``dv.paimon``.
    cardinality : ``None`` if the writer is older than 1.0.
    """

    partition: int
    bucket: int
    data_file: str
    path: str
    offset: int
    length: int
    cardinality: int | None

    @property
    def id(self) -> str:
        """Identifies the DV, since an index file is never changed in place."""
        return f"{self.path}:{self.offset}"


@dataclass(frozen=True, slots=True)
class IndexFileEntry:
    """One index file of any kind."""

    kind: str
    partition: int
    bucket: int
    name: str
    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """An index manifest. ``files`` and ``dvs`` are in the manifest's order."""

    files: tuple[IndexFileEntry, ...] = ()
    dvs: tuple[DvEntry, ...] = ()


def read_index_manifest(
    layout: Layout, name: str | None, partitions: Partitions, options: Mapping[str, str], version: int
) -> IndexManifest:
    """Read the index manifest of a snapshot. Without a name, the result is empty. ``options``: the table's options.

    Raises
    ------
    DamagedTableError : the file is damaged, or a data file has two DVs; the message names the file.
    UnsupportedFeatureError : an entry has a newer format version.
    """
    if name is None:
        return IndexManifest()
    files: list[IndexFileEntry] = []
    dvs: list[DvEntry] = []
    in_buckets = options.get("index-file-in-data-file-dir", "false").lower() == "true"
    data_folder = options.get("data-file.path-directory", "")
    for record in avro_records(layout, name, _WANTED, version):
        with located(layout.uri, version, layout.manifest(name)):
            entry = _file(layout, record, partitions, in_buckets=in_buckets, data_folder=data_folder)
            files.append(entry)
            if entry.kind == DELETION_VECTORS:
                dvs += _dvs(entry, record.get("_DELETIONS_VECTORS_RANGES") or [])
    seen: set[tuple[int, int, str]] = set()
    for dv in dvs:
        key = (dv.partition, dv.bucket, dv.data_file)
        if key in seen:
            raise DamagedTableError(
                f"{layout.manifest(name)}: the data file {dv.data_file} has two deletion vectors",
                table=layout.uri,
                version=version,
                next_step="restore an earlier snapshot, or let Paimon compact the table",
            )
        seen.add(key)
    return IndexManifest(tuple(files), tuple(dvs))


def _file(
    layout: Layout, record: Mapping[str, Any], partitions: Partitions, *, in_buckets: bool, data_folder: str
) -> IndexFileEntry:
    if record.get("_VERSION") != _VERSION:
        raise UnsupportedFeatureError(
            f"it has format version {record.get('_VERSION')}; this release reads only version {_VERSION}",
            features=(f"index manifest version {record.get('_VERSION')}",),
            next_step="use a newer release of this tool",
        )
    if record.get("_KIND") != 0:
        raise DamagedTableError("it has an entry that is not an ADD")
    row, bucket, kind, name = (record.get(each) for each in ("_PARTITION", "_BUCKET", "_INDEX_TYPE", "_FILE_NAME"))
    size, rows, external = (record.get(each) for each in ("_FILE_SIZE", "_ROW_COUNT", "_EXTERNAL_PATH"))
    if (
        not isinstance(row, bytes)
        or not isinstance(bucket, int)
        or not isinstance(kind, str)
        or not isinstance(name, str)
        or not isinstance(size, int)
        or not isinstance(rows, int)
        or not isinstance(external, str | None)
        or not name
        or "/" in name
        or name == ".."
    ):
        raise DamagedTableError("an entry has missing or invalid values")
    partition = partitions.code(row)
    if external:
        path = layout.storage.path_of_uri(plain_uri(external))
    elif in_buckets:
        folder = [data_folder, partitions.found[partition].folder, f"bucket-{bucket}", name]
        path = "/".join(each for each in folder if each)
    else:
        path = f"{INDEX}/{name}"
    return IndexFileEntry(kind, partition, bucket, name, path, size, rows)


def _dvs(file: IndexFileEntry, ranges: Any) -> list[DvEntry]:
    found = []
    for each in ranges:
        if not isinstance(each, dict):
            raise DamagedTableError(f"{file.name} has an empty range")
        data_file, offset, length, count = (each.get(name) for name in ("f0", "f1", "f2", "_CARDINALITY"))
        if (
            not isinstance(data_file, str)
            or not isinstance(offset, int)
            or not isinstance(length, int)
            or not isinstance(count, int | None)
            or offset < 1
            or length < 0
            or (count is not None and count < 0)
        ):
            raise DamagedTableError(f"{file.name} has a range with missing or invalid values")
        found.append(DvEntry(file.partition, file.bucket, data_file, file.path, offset, length, count))
    return found
