"""List the files in the folders that Paimon's writers use, and classify each by its name.

The listing covers the folders of manifests, indexes and statistics, and the buckets of every partition. In the folder
of snapshots, it covers files that are not snapshots. In the folder of changelogs, it covers unfinished files of a
writer. Nothing else is listed: no files directly in the table's folder, no branches, tags, schemas, consumers and
services, no unknown folders, and no places outside the table, which other tables may share.

A file counts as Paimon's only if a writer of Paimon's makes such names. Packs of managed blobs do not count, because
only Paimon's own cleaner reads the files that refer to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.storage import FileInfo, staged_for
from dv_maintenance.tables.paimon.layout import CHANGELOG, INDEX, MANIFEST, SNAPSHOT, Layout
from dv_maintenance.tables.paimon.rows.partitions import folder_name
from dv_maintenance.tables.paimon.vacuum.references import STATISTICS
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.reach.unneeded import KnownFile

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.log.schema import Schema

BUCKET: Final = "bucket"
_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_BUCKET_FOLDER: Final = re.compile(r"bucket-(?:[0-9]+|postpone)")
_HINTS: Final = frozenset({"LATEST", "EARLIEST"})
# Checksums that Hadoop's local file system keeps next to a file.
_STAGED: Final = re.compile(rf"\.changelog-[0-9]+(?:\.{_UUID}\.tmp|\.crc)")
_CHECKSUM: Final = re.compile(r"\.(.+)\.crc")
_MANAGED: Final = ".managed.blob"
_FORMATS: Final = "parquet|orc|avro|csv|json|text|txt|lance|vortex|blob|row|index|blobref|lookup"


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    kind: str


# By folder. The first rule that matches the whole name applies.
_RULES: Final = {
    MANIFEST: (_Rule(re.compile(rf"(?:manifest|manifest-list|index-manifest)-{_UUID}(?:-[0-9]+)?"), "other"),),
    INDEX: (_Rule(re.compile(rf"(?:index-|.*global-index-){_UUID}(?:-[0-9]+)?(?:\.index)?"), "index"),),
    STATISTICS: (_Rule(re.compile(rf"stats?-{_UUID}(?:-[0-9]+)?"), "other"),),
    BUCKET: (
        _Rule(re.compile(rf"(?:index-|.*global-index-){_UUID}(?:-[0-9]+)?(?:\.index)?"), "index"),
        _Rule(re.compile(rf"changelog-{_UUID}-[0-9]+\..*(?:{_FORMATS})"), "change"),
        _Rule(re.compile(rf".*{_UUID}-[0-9]+(?:-[0-9]+)?\..*(?:{_FORMATS})"), "data"),
    ),
}


def file_key(name: str) -> str:
    """The name of the file that a checksum file belongs to; any other name is returned unchanged.

    >>> file_key(".manifest-1.crc"), file_key("manifest-1")
    ('manifest-1', 'manifest-1')
    """
    match = _CHECKSUM.fullmatch(name)
    return name if match is None else match[1]


def file_kind(folder: str, name: str) -> str | None:
    """The kind of a file, as in ``model.ExpiredFile``, from its name and the kind of its folder.

    folder : MANIFEST, INDEX, STATISTICS, BUCKET, SNAPSHOT or CHANGELOG.

    Returns ``None`` if no writer of Paimon's made the file, or if only Paimon knows whether it is needed.
    """
    whole = staged_for(name)
    if whole is not None:
        made = folder == SNAPSHOT or file_kind(folder, whole) is not None
        return "other" if made else None
    if folder == SNAPSHOT:
        return None if name in _HINTS or name.startswith("snapshot-") else "other"
    if folder == CHANGELOG:
        return "other" if _STAGED.fullmatch(name) else None
    key = file_key(name)
    if key.endswith(_MANAGED):
        return None
    kind = next((rule.kind for rule in _RULES[folder] if rule.pattern.fullmatch(key)), None)
    return kind if key == name or kind is None else "other"


def list_files(layout: Layout, schema: Schema) -> list[tuple[FileInfo, KnownFile]]:
    """List the files; their keys are their names in manifests. For a branch, list only its folders of snapshots and
    changelogs.

    Costs one listing per folder.

    Raises
    ------
    StorageError : a listing failed.
    """
    folders = [(kind, f"{layout.own}{kind}") for kind in (SNAPSHOT, CHANGELOG)]
    if layout.branch is None:
        data = schema.options.get("data-file.path-directory", "").strip("/")
        folders += [(MANIFEST, MANIFEST), (INDEX, INDEX), (STATISTICS, STATISTICS)]
        folders += [(BUCKET, path) for path in _buckets(layout, data, schema.partition_keys)]
    parts = in_parallel(layout.storage, folders, lambda each: _known_files(layout, *each))
    return [file for part in parts for file in part]


def _buckets(layout: Layout, folder: str, partition_keys: Sequence[str]) -> Iterator[str]:
    """The bucket folders below a folder that is partitioned by these keys. Unknown folders are skipped."""
    for name in layout.storage.folders(folder):
        path = f"{folder}/{name}" if folder else name
        if partition_keys:
            if name.startswith(f"{folder_name(partition_keys[0])}="):
                yield from _buckets(layout, path, partition_keys[1:])
        elif _BUCKET_FOLDER.fullmatch(name):
            yield path


def _known_files(layout: Layout, kind: str, folder: str) -> list[tuple[FileInfo, KnownFile]]:
    """The files directly in a folder. Snapshots, changelogs and hints are never orphans."""
    infos = [info for info in layout.storage.list(folder, staged=True) if "/" not in info.path[len(folder) + 1 :]]
    names = [info.path.rpartition("/")[2] for info in infos]
    found = [(info, KnownFile(file_key(name), file_kind(kind, name))) for info, name in zip(infos, names, strict=True)]
    return [file for file in found if file[1].kind is not None or kind not in {SNAPSHOT, CHANGELOG}]
