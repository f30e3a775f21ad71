"""The fragments of a manifest as the ``files`` table of a snapshot, with reliable counts.

Writers before about 0.8 recorded no counts. The first ones with counts recorded some wrong ones: live rows instead of
physical rows. Such manifests have no writer version. Their fragments are counted again, from the deletion files and the
footers of the data files. Lance itself does the same when it next writes such a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dv_maintenance.dv import DeletionVector, lance
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError
from dv_maintenance.files.arrays import int32s, int64s, strings
from dv_maintenance.files.lance_footer import count_rows
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.layout import DATA, data_path, deletion_path, path_of_fragment
from dv_maintenance.tables.lance.log.manifest import DataFile, Fragment, Index, Manifest
from dv_maintenance.tables.model import FILES_SCHEMA, SEQUENCE
from dv_maintenance.tables.parallel import in_parallel

FILES: Final = pa.schema(
    [
        *FILES_SCHEMA,
        SEQUENCE,
        pa.field("fragment_id", pa.int64(), nullable=False),
        pa.field("data_files", pa.int32(), nullable=False),
        # Codec of the deletion file, and the version that it is based on; null without a deletion file.
        pa.field("dv_codec", pa.string()),
        pa.field("dv_read_version", pa.int64()),
    ]
)


def files_table(storage: Storage, manifest: Manifest, fragments: Sequence[Fragment]) -> pa.Table:
    """One row per fragment, schema ``FILES``, in the manifest's order. ``fragments`` are ``counted``.

    path : of the fragment's first data file, as the manifest and the base path spell it, with ``#fragment-ID`` if other
        fragments have the same one; ``fragment-ID`` if it has no data file. Deletes and added columns do not change it,
        and no two versions use it for different rows, since the file's name is a UUID. ``fragment_id`` has the same
        guarantee unless the table is recreated.
    dv_id : path of the deletion file, which is never written twice.
    modified : the timestamp of the version, since manifests have no time for a file. No file is younger.

    Raises
    ------
    DamagedTableError : a deletion file lists more rows than its fragment has, or its base path is unknown.
    """
    rows = len(fragments)
    deletions = [each.deletion for each in fragments]
    logged = log_columns(storage, manifest, fragments, shared_files(storage, manifest, fragments))
    columns = {
        "path": strings(logged["path"]),
        "partition": pa.DictionaryArray.from_arrays(int32s(np.zeros(rows)), strings([""])),
        "size": int64s(logged["size"]),
        "physical_rows": int64s(logged["physical_rows"]),
        "deleted_rows": int64s(logged["deleted_rows"]),
        "dv_id": strings(logged["dv_id"]),
        "modified": int64s([manifest.timestamp] * rows),
        "sequence": int64s(_sequence(manifest, fragments)),
        "fragment_id": int64s([each.id for each in fragments]),
        "data_files": int32s([len(each.files) for each in fragments]),
        "dv_codec": strings([each.codec if each else None for each in deletions]),
        "dv_read_version": int64s([each.read_version if each else None for each in deletions]),
    }
    return pa.Table.from_arrays([columns[name] for name in FILES.names], schema=FILES)


def shared_files(storage: Storage, manifest: Manifest, fragments: Sequence[Fragment]) -> frozenset[str]:
    """Paths of data files that are the first one of several fragments. Raises as :func:`files_table`."""
    times = Counter(_path(storage, manifest, each) for each in fragments)
    return frozenset(path for path, number in times.items() if number > 1)


def log_columns(
    storage: Storage, manifest: Manifest, fragments: Sequence[Fragment], shared: Collection[str]
) -> dict[str, list[Any]]:
    """The columns of a file log that depend on the fragment: ``path``, ``size``, ``physical_rows``, ``deleted_rows``,
    ``dv_id``. Raises as :func:`files_table`.

    shared : the ``shared_files`` of the snapshot that the log belongs to.
    """
    for each in fragments:
        if each.deletion and each.physical_rows is not None and (each.deletion.count or 0) > each.physical_rows:
            raise DamagedTableError(
                f"fragment {each.id} has {each.physical_rows} rows, {each.deletion.count} of them deleted",
                table=storage.uri,
                version=manifest.version,
                next_step="run preflight to see what is wrong with its deletion file, or restore an earlier version",
            )
    deletions = [each.deletion for each in fragments]
    paths = [_path(storage, manifest, each) for each in fragments]
    return {
        "path": [
            path_of_fragment(path, each.id) if path in shared else path
            for path, each in zip(paths, fragments, strict=True)
        ],
        "size": [sum(file.size or 0 for file in each.files) for each in fragments],
        "physical_rows": [each.physical_rows for each in fragments],
        "deleted_rows": [(each.count or 0) if each else 0 for each in deletions],
        "dv_id": [deletion_path(storage, manifest, each) if each else None for each in deletions],
    }


def _sequence(manifest: Manifest, fragments: Sequence[Fragment]) -> list[int]:
    """Numbers in the manifest's order. A gap separates neighbours that Lance would not merge: different indices cover
    them, or only one of them has row ids.
    """
    covering = [covered_fragments(index) for index in manifest.indices() if index.fragments]
    numbers: list[int] = []
    last: tuple[bool, ...] | None = None
    number = -1
    for each in fragments:
        kind = (each.has_row_ids, *(each.id in covered for covered in covering))
        number += 1 if last in (None, kind) else 2
        last = kind
        numbers.append(number)
    return numbers


def covered_fragments(index: Index) -> DeletionVector:
    """Ids of the fragments that an index covers, as far as the manifest says. Raises DamagedTableError."""
    if not index.fragments:
        return DeletionVector.empty()
    try:
        return lance.decode_bitmap(index.fragments)
    except DamagedDeletionVectorError as damage:
        raise DamagedTableError(f"the fragments of index {index.name!r} are not a bitmap: {damage.reason}") from None


def _path(storage: Storage, manifest: Manifest, fragment: Fragment) -> str:
    return data_path(storage, manifest, fragment.files[0]) if fragment.files else f"fragment-{fragment.id}"


# -- counts -------------------------------------------------------------------------------------------------------


def counts_are_known(manifest: Manifest, fragment: Fragment) -> bool:
    """Whether the manifest has reliable counts of a fragment's physical and deleted rows."""
    return (
        manifest.writer is not None
        and fragment.physical_rows is not None
        and (fragment.deletion is None or fragment.deletion.count is not None)
    )


def counted(storage: Storage, manifest: Manifest, fragments: Sequence[Fragment]) -> tuple[Fragment, ...]:
    """The fragments with row counts, deletion counts and sizes filled in. Costs no request if the manifest has them;
    otherwise two or three requests for each fragment without them, and a listing of the data folder for sizes.

    Raises
    ------
    DamagedDeletionVectorError, DamagedTableError : a file that holds the count is damaged or missing.
    """
    unknown = [each for each in fragments if not counts_are_known(manifest, each)]
    done = {each.id: each for each in in_parallel(storage, unknown, lambda each: _count(storage, manifest, each))}
    found = tuple(done.get(each.id, each) for each in fragments)
    if all(file.size is not None for each in found for file in each.files):
        return found
    sizes = {info.path: info.size for info in storage.list(DATA)}
    return tuple(
        replace(each, files=tuple(_sized(storage, manifest, file, sizes) for file in each.files)) for each in found
    )


def _count(storage: Storage, manifest: Manifest, fragment: Fragment) -> Fragment:
    rows = fragment.physical_rows
    if fragment.files:
        first = fragment.files[0]
        rows = count_rows(storage, data_path(storage, manifest, first), first.size)
    if fragment.deletion is None:
        return replace(fragment, physical_rows=rows)
    count = deleted_rows(storage, manifest, fragment)
    return replace(fragment, physical_rows=rows, deletion=replace(fragment.deletion, count=count))


def deleted_rows(storage: Storage, manifest: Manifest, fragment: Fragment) -> int:
    """How many rows a fragment's deletion file lists. Raises DamagedDeletionVectorError."""
    return len(deletions_of(storage, manifest, fragment))


def deletions_of(storage: Storage, manifest: Manifest, fragment: Fragment) -> DeletionVector:
    """The deleted rows of a fragment. Raises DamagedDeletionVectorError, which names the file."""
    if fragment.deletion is None:
        return DeletionVector.empty()
    path = deletion_path(storage, manifest, fragment.deletion)
    try:
        return read_deletions(storage, path, fragment.deletion.codec)
    except DamagedDeletionVectorError as damage:
        raise DamagedDeletionVectorError(
            damage.reason,
            file=path,
            table=storage.uri,
            version=manifest.version,
            next_step=f"fragment {fragment.id} is unreadable: restore the file from a backup, or read an older version",
        ) from damage.__cause__


def read_deletions(storage: Storage, path: str, codec: str) -> DeletionVector:
    """The rows that a deletion file lists. Raises DamagedDeletionVectorError, also for a missing file."""
    try:
        data = storage.get(path)
    except FileNotFoundError as error:
        raise DamagedDeletionVectorError("the file does not exist", file=path) from error
    return lance.decode(codec, data)


def _sized(storage: Storage, manifest: Manifest, file: DataFile, sizes: dict[str, int]) -> DataFile:
    if file.size is not None:
        return file
    path = data_path(storage, manifest, file)
    if path in sizes:
        return replace(file, size=sizes[path])
    found = storage.info(path)
    if found is None:
        raise DamagedTableError(
            f"data file {path} does not exist",
            table=storage.uri,
            version=manifest.version,
            next_step="restore the file from a backup, or restore an older version of the table",
        )
    return replace(file, size=found.size)
