"""Managed blobs: objects in ``_blobs`` that rows name, not the manifest.

Format: blob v2 of Lance's file format. A blob column stores descriptors. Those of the kinds 4 and 5 name an object by
its path relative to the table's root, or to that of a base path. An object may hold the blobs of many rows, and many
versions may name it. It is needed as long as a live row of a version names it, which is also the rule of Lance's own
cleanup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import UnsupportedFeatureError
from dv_maintenance.files.lance_library import lance_errors, open_dataset
from dv_maintenance.tables.lance.rows.schema import LanceField, is_blob, lance_fields

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.lance.log.manifest import Fragment, Manifest

BLOBS: Final = "_blobs"
_MANAGED: Final = (4, 5)
_LAST_KIND: Final = 5


def managed_objects(storage: Storage, manifest: Manifest, fragments: Sequence[Fragment]) -> set[str]:
    """Paths of the objects that live rows of some fragments of a version name. Reads the descriptors, not the blobs.

    Raises
    ------
    RefusedError : pylance is missing or too old.
    DamagedTableError : a data file is missing or damaged.
    UnsupportedFeatureError : a row has a blob of an unknown kind, which may need other objects.
    StorageError : the storage did not answer.
    """
    columns = [each.name for each in lance_fields(manifest.field_records) if _has_blobs(each)]
    found: set[str] = set()
    if not columns or not fragments:
        return found
    with lance_errors("the blob descriptors", table=storage.uri, version=manifest.version):
        dataset = open_dataset(storage, manifest.version)
        wanted = {each.id for each in fragments}
        chosen = [each for each in dataset.get_fragments() if each.fragment_id in wanted]
        scanner = dataset.scanner(columns=columns, fragments=chosen, blob_handling="blobs_descriptions")
        for batch in scanner.to_batches():
            for descriptors in (each for column in batch.columns for each in _descriptors(column)):
                kinds, paths = (descriptors.field(name) for name in ("kind", "blob_uri"))
                kinds = pc.if_else(descriptors.is_valid(), kinds, pa.scalar(None, kinds.type))
                if (pc.max(kinds).as_py() or 0) > _LAST_KIND:
                    raise UnsupportedFeatureError(
                        f"a row has a blob of the unknown kind {pc.max(kinds).as_py()}",
                        features=("blobs of an unknown kind",),
                        table=storage.uri,
                        version=manifest.version,
                        next_step="use a newer release of this tool, or Lance's own cleanup_old_versions()",
                    )
                managed = pc.is_in(kinds, value_set=pa.array(_MANAGED, kinds.type))
                found.update(pc.unique(paths.filter(managed)).to_pylist())
    return found


def _has_blobs(field: LanceField) -> bool:
    return is_blob(field) or any(map(_has_blobs, field.children))


def _descriptors(array: pa.Array) -> Iterator[pa.StructArray]:
    """The descriptors in a column, which may be nested in structs and lists."""
    if isinstance(array, pa.StructArray):
        if {"kind", "blob_uri"} <= {array.type.field(at).name for at in range(array.type.num_fields)}:
            yield array
        else:
            for child in array.flatten():
                yield from _descriptors(child)
    elif isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray | pa.MapArray):
        yield from _descriptors(array.flatten())
