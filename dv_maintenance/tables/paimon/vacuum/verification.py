"""A last check before the first deletion, independent of what the vacuum decided.

The data files of the newest snapshot exist, and none of its files is about to be deleted. If a name in a manifest is
damaged, the file that had it may seem unneeded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dv_maintenance.errors import DamagedTableError, VerificationError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.model import ExpiredFile
from dv_maintenance.tables.paimon.log.documents import Document
from dv_maintenance.tables.paimon.log.index_manifest import read_index_manifest
from dv_maintenance.tables.paimon.log.manifests import live_entries
from dv_maintenance.tables.paimon.log.snapshots import parse_snapshot
from dv_maintenance.tables.paimon.rows.partitions import Partitions
from dv_maintenance.tables.paimon.vacuum.decision import MovedError, conflict
from dv_maintenance.tables.paimon.vacuum.holders import Ref
from dv_maintenance.tables.paimon.vacuum.reached import key_of
from dv_maintenance.tables.paimon.vacuum.references import ReferenceReader


def verify(
    reader: ReferenceReader,
    newest: Ref,
    files: Sequence[ExpiredFile],
    listed: Collection[str] | None,
    *,
    version: int,
) -> None:
    """Check ``files``, which are about to be deleted.

    newest : the newest snapshot.
    listed : keys of the listed files; ``None`` if the data files were not listed.
    version : for errors.

    Raises
    ------
    MovedError : the newest snapshot was deleted meanwhile.
    DamagedTableError : it lacks a file.
    VerificationError : it needs one of ``files``.
    """
    layout, schema = reader.layout, reader.schema
    partitions = Partitions(schema.partition_fields(), schema.options)
    try:
        file = parse_snapshot(Document.parse(layout.uri, newest.path, newest.data))
        needed = set(live_entries(layout, file, partitions).entries["file_name"].to_pylist())
        index = read_index_manifest(layout, file.index_manifest, partitions, schema.options, file.id)
    except DamagedTableError:
        if is_unchanged(layout.storage, newest):
            raise
        what = f"{newest.path}, its newest snapshot, was deleted"
        raise MovedError(conflict(layout, version, what)) from None
    if listed is not None:
        _check_there(reader, newest, listed, version)
    indexes = {each.path for each in index.files}
    for each in files:
        if key_of(each) in needed or each.path in indexes:
            raise VerificationError(
                f"{each.path} was about to be deleted, but the newest snapshot needs it",
                table=layout.uri,
                version=version,
            )


def _check_there(reader: ReferenceReader, newest: Ref, listed: Collection[str], version: int) -> None:
    """Check that data files of the newest snapshot that the listing lacks exist."""
    layout = reader.layout
    (reached,) = reader.resolve([newest])
    # Files that were committed after the listing are not in it.
    for file in reader.files(reached.data):
        if file.name in listed or file.external or file.folder is None:
            continue
        if layout.storage.exists(f"{file.folder}/{file.name}"):
            continue
        if not is_unchanged(layout.storage, newest):
            raise MovedError(conflict(layout, version, f"{newest.path}, its newest snapshot, vanished"))
        raise DamagedTableError(
            f"{file.folder}/{file.name}, which the newest snapshot needs, does not exist: nothing is deleted "
            "until the cause is known",
            table=layout.uri,
            version=newest.id,
            next_step="restore the file, or roll the table back; CALL sys.remove_unexisting_files gives it up",
        )


def is_unchanged(storage: Storage, ref: Ref) -> bool:
    """Whether the file of a snapshot, a tag or a changelog is unchanged."""
    try:
        return storage.get(ref.path) == ref.data
    except FileNotFoundError:
        return False
