"""Symlink manifests: plain lists of a table's data files, for Hive, Presto, Athena and other readers of bare Parquet.

Such readers do not know deletion vectors (DVs), so manifests are written for DV-free snapshots only. Their content is
that of delta-spark's ``GENERATE symlink_format_manifest``: one absolute path per line, one manifest per partition, in a
folder named after the partition values as the log spells them. Manifests are not part of the log, and they are replaced
one by one: a reader may see some partitions before the change and some after it, but never half a manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import uuid4

import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError, StorageError
from dv_maintenance.remedies import Remedy, run, setting
from dv_maintenance.storage import RawName
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.vacuum.names import path_of
from dv_maintenance.tables.model import hive_folder
from dv_maintenance.tables.reports import ManifestReport
from dv_maintenance.tables.sweep import remove_empty_folders

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_ROOT = "_symlink_format_manifest"
_NAME = "manifest"
# Files beside a manifest on local disk: Hadoop's checksum, which would not match our manifest, and files that killed
# writers left. Engines read every file of such a folder whose name does not begin with a dot.
_BESIDE = re.compile(rf"\.{_NAME}\.(?:crc|[0-9a-f-]{{36}}\.tmp)|{_NAME}#[0-9]+")


def write_manifests(storage: Storage, snapshot: DeltaSnapshot, *, dry_run: bool = False) -> ManifestReport:
    """Write the manifests of a snapshot and remove those of partitions that it does not have. Touches nothing outside
    ``_symlink_format_manifest``.

    Raises
    ------
    RefusedError : files have DVs, a file name contains a line break, or a folder of manifests is a link.
    UnsupportedFeatureError : the table maps columns, or has features that we don't know.
    """
    if dry_run:
        storage = Rehearsal.of(storage)
    check_writable(storage, snapshot, "manifest")
    _refuse_dvs(snapshot)
    manifests = dict(_manifests(storage, snapshot))
    found = {info.path for info in storage.list(_ROOT, staged=True)}
    for path in (*manifests, *found):
        storage.check_target(path)  # before the first one is written
    stale = sorted(path for path in found - manifests.keys() if path.rpartition("/")[2] == _NAME)
    written = 0
    try:
        storage.delete(path for path in found if _BESIDE.fullmatch(path.rpartition("/")[2]))
        for path, lines in manifests.items():
            staging = f"{path.removesuffix(_NAME)}.{_NAME}.{uuid4()}.tmp"
            storage.put(path, "".join(f"{line}\n" for line in lines).encode(), staging=staging)
            written += 1
        storage.delete(stale)
    except StorageError as error:
        error.table, error.version = storage.uri, snapshot.version
        error.done = (
            f"{written} of {len(manifests)} manifests were written, and perhaps the next one; the others are unchanged"
        )
        error.next_step = "run again: until then readers of manifests see files of different versions"
        raise
    if not dry_run:
        remove_empty_folders(storage, stale, below=_ROOT)
    return ManifestReport(snapshot.version, tuple(sorted(manifests)), snapshot.files.num_rows, tuple(stale))


def _refuse_dvs(snapshot: DeltaSnapshot) -> None:
    with_dv = snapshot.files.num_rows - snapshot.files["dv_id"].null_count
    if with_dv:
        raise RefusedError(
            f"{with_dv} of {snapshot.files.num_rows} files have deletion vectors, which readers of manifests ignore: "
            "they would return deleted rows",
            at=snapshot,
            next_step=Remedy("purge first: {}, or {}", (run("purge", snapshot.table), setting("purge_first", True))),
        )


def _manifests(storage: Storage, snapshot: DeltaSnapshot) -> Iterator[tuple[str, list[str]]]:
    """Path and lines of each manifest."""
    columns = snapshot.partition_columns
    if not columns:
        yield f"{_ROOT}/{_NAME}", _lines(storage, snapshot, snapshot.files["path"].to_pylist())
        return
    # Column mapping is refused, so the log uses the logical names. Columns are numbered here: one may be called `path`.
    table = snapshot.files.select(["path"])
    for number, column in enumerate(columns):
        table = table.append_column(str(number), pc.map_lookup(snapshot.files["partition_values"], column, "last"))
    keys = [str(number) for number in range(len(columns))]
    folders: dict[str, list[str]] = {}
    for group in table.group_by(keys, use_threads=False).aggregate([("path", "list")]).to_pylist():
        folder = hive_folder({column: group[key] for column, key in zip(columns, keys, strict=True)})
        folders.setdefault(folder, []).extend(group["path_list"])
    for folder, names in folders.items():
        yield f"{_ROOT}/{folder}/{_NAME}", _lines(storage, snapshot, names)


def _lines(storage: Storage, snapshot: DeltaSnapshot, names: Sequence[str]) -> list[str]:
    """Absolute paths as Hadoop's ``Path.toString`` spells them: decoded, and with a single slash after ``file:``."""
    root = _decoded(storage.uri)
    paths = (path_of(storage, RawName(name)) for name in names)
    lines = sorted(_decoded(path) if "://" in path else f"{root}/{path}" for path in paths)
    broken = next((line for line in lines if "\n" in line or "\r" in line), None)
    if broken is not None:
        raise RefusedError(
            f"the file name {broken!r} contains a line break, and a manifest has one name per line",
            at=snapshot,
            next_step="rewrite that file under another name",
        )
    return lines


def _decoded(uri: str) -> str:
    text = unquote(uri)
    return "file:" + text[7:] if text.startswith("file://") else text
