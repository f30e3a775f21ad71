"""The history of a Lance table, version by version.

The transaction of a commit names the operation. The changes of fragments and deletion files come from a comparison of
its manifest with the previous one. This works for every writer, and even after transactions are deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.log.manifest import Fragment, Manifest, parse_fragment
from dv_maintenance.tables.lance.log.transaction import Transaction, read_transaction
from dv_maintenance.tables.lance.log.versions import VersionFile, all_versions, naming_manifest, read_manifest
from dv_maintenance.tables.lance.rows.files import deleted_rows
from dv_maintenance.tables.lance.snapshot import LanceSnapshot
from dv_maintenance.tables.model import Change, Changes, HistoryEntry, OldestDv
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.versions import numbered_changes

_BATCH: Final = 64  # manifests in memory at once
_UNKNOWN: Final = Transaction("UNKNOWN", 0, None)


def history(storage: Storage, limit: int | None = None) -> list[HistoryEntry]:
    """The versions that still exist, newest first, at most ``limit`` of them. Reads the manifest of each, and of the
    predecessor of the oldest one returned.

    ``operation`` is Lance's own name; UNKNOWN if the transaction is gone. If the predecessor of a version was cleaned
    up, the changes of that version are unknown and its counts are 0.

    Raises
    ------
    UsageError : ``limit`` is negative.
    TableNotFoundError, RefusedError, DamagedTableError : as ``versions.all_versions``, or a manifest cannot be read.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"the limit is negative: {limit}", next_step="give 0 or more")
    files = all_versions(storage)[::-1]
    wanted = files if limit is None else files[:limit]
    found: list[HistoryEntry] = []
    after: Manifest | None = None
    for manifest in manifests(storage, files[: len(wanted) + 1] if wanted else []):
        if after is not None:
            found.append(_entry(storage, after, manifest))
        after = manifest
    # The oldest version has no predecessor.
    if after is not None and len(found) < len(wanted):
        found.append(_entry(storage, after, None))
    return found


def changes_since(storage: Storage, version: int | None) -> Changes:
    """The changes after ``version``. Reads only the manifests of these versions, unless a transaction is gone.

    Compaction, indices and config do not change data, nor does a delete that found no row. Versions that were cleaned
    up are not in ``commits``; they count as data-changing, since their operation is unknown.

    Raises
    ------
    UsageError : the table has no such version.
    TableNotFoundError, RefusedError, DamagedTableError : as :func:`history`.
    """
    files = all_versions(storage)
    newest = files[-1].version
    if version is not None and not -1 <= version <= newest:
        raise UsageError(
            f"there is no version {version}",
            table=storage.uri,
            next_step=f"the newest is {newest}: was the table replaced?",
        )
    new = [file for file in files if version is None or file.version > version]
    commits = []
    before: Manifest | None = None
    for manifest in manifests(storage, new):
        transaction = transaction_of(storage, manifest)
        if transaction.data_changed is None and before is None:
            earlier = [file for file in files if file.version == manifest.version - 1]
            before = next(manifests(storage, earlier), None)
        changed = data_changed(transaction, manifest, before)
        commits.append(Change(manifest.version, manifest.timestamp, transaction.operation, changed))
        before = manifest
    return numbered_changes(version, newest, commits, first=1)


def oldest_dv(storage: Storage, snapshot: LanceSnapshot, limit: int = 1000) -> OldestDv | None:
    """When the first of the snapshot's fragments with a deletion file got one.

    Each delete replaces a fragment's deletion file, so the search is for the first version in which one of these
    fragments had any. Every manifest lists all fragments, so bisection works. It usually costs two reads, because the
    name of a deletion file contains the version that it is based on. A restore that undid deletes goes unnoticed: the
    age then counts from before the restore.

    Raises
    ------
    TableNotFoundError, RefusedError, DamagedTableError : as :func:`history`.
    """
    wanted = {each.id for each in snapshot.fragments if each.deletion}
    if not wanted:
        return None
    files = [file for file in all_versions(storage) if file.version <= snapshot.version]
    # Files that a clone or a branch inherited were committed in another history, under other version numbers.
    own = [each.deletion for each in snapshot.fragments if each.deletion and each.deletion.base_id is None]
    base = min((file.read_version for file in own), default=0)
    likely = sum(file.version <= base for file in files) - 1
    # files[with_one] has such a deletion file, files[without] has none.
    without, with_one, timestamp, gone = -1, len(files) - 1, snapshot.timestamp, False
    for _ in range(limit):
        if with_one - without <= 1:
            break
        at = next((at for at in (likely, likely + 1) if without < at < with_one), (without + with_one) // 2)
        manifest = next(manifests(storage, files[at : at + 1]), None)
        if manifest is not None and any(
            each.id in wanted and each.deletion for each in _fragments(storage, manifest, ())
        ):
            with_one, timestamp = at, manifest.timestamp
        else:
            without, gone = at, manifest is None
    first = files[with_one].version
    exact = (
        with_one - without == 1 and not gone and (first == 1 or (without >= 0 and files[without].version == first - 1))
    )
    return OldestDv(timestamp, exact=exact)


# -- one version --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Difference:
    files_added: int = 0
    files_removed: int = 0
    dvs_added: int = 0
    dvs_removed: int = 0
    rows_deleted_by_dvs: int = 0


def _entry(storage: Storage, manifest: Manifest, before: Manifest | None) -> HistoryEntry:
    transaction = transaction_of(storage, manifest)
    if before is not None and before.version != manifest.version - 1:
        before = None
    known = before is not None or manifest.version == 1
    difference = _difference(storage, before, manifest) if known else _Difference()
    return HistoryEntry(
        version=manifest.version,
        timestamp=manifest.timestamp,
        operation=transaction.operation,
        parameters={**transaction.parameters, **transaction.properties},
        metrics={},
        engine=manifest.writer,
        files_added=difference.files_added,
        files_removed=difference.files_removed,
        dvs_added=difference.dvs_added,
        dvs_removed=difference.dvs_removed,
        rows_deleted_by_dvs=difference.rows_deleted_by_dvs,
        data_changed=data_changed(transaction, manifest, before),
    )


def transaction_of(storage: Storage, manifest: Manifest) -> Transaction:
    """The transaction that made a version; UNKNOWN if it is gone."""
    return read_transaction(storage, manifest) or _UNKNOWN


def data_changed(transaction: Transaction, manifest: Manifest, before: Manifest | None) -> bool:
    """Whether a version changed data. ``before``: the previous version; ``None`` if it is gone."""
    if transaction.data_changed is not None:
        return transaction.data_changed
    return before is None or (before.fragment_records, before.field_records) != (
        manifest.fragment_records,
        manifest.field_records,
    )


def _difference(storage: Storage, before: Manifest | None, after: Manifest) -> _Difference:
    """Compare only the fragments that are not byte-identical, usually a few of many."""
    olds = before.fragment_records if before else ()
    same = set(olds) & set(after.fragment_records)
    gone = _fragments(storage, before, same) if before else []
    came = _fragments(storage, after, same)
    files_gone, files_came = _files(gone), _files(came)
    dvs_gone, dvs_came = _dvs(gone), _dvs(came)
    rows = 0
    for name in dvs_came.keys() - dvs_gone.keys():
        fragment = dvs_came[name]
        rows += _deleted(storage, after, fragment)
        # A deletion file replaces the previous one of its fragment: count only the growth. A reused fragment id has
        # other data files, and its previous deletion file does not count.
        for old in gone:
            if before and old.id == fragment.id and old.files[:1] == fragment.files[:1]:
                rows -= _deleted(storage, before, old)
    return _Difference(
        files_added=len(files_came - files_gone),
        files_removed=len(files_gone - files_came),
        dvs_added=len(dvs_came.keys() - dvs_gone.keys()),
        dvs_removed=len(dvs_gone.keys() - dvs_came.keys()),
        rows_deleted_by_dvs=rows,
    )


def _fragments(storage: Storage, manifest: Manifest, but: Collection[bytes]) -> list[Fragment]:
    with naming_manifest(storage, manifest.path, manifest.version):
        return [parse_fragment(record) for record in manifest.fragment_records if record not in but]


def _files(fragments: Sequence[Fragment]) -> set[tuple[str, int | None]]:
    return {(file.path, file.base_id) for fragment in fragments for file in fragment.files}


def _dvs(fragments: Sequence[Fragment]) -> dict[tuple[str, int | None], Fragment]:
    return {(each.deletion.name, each.deletion.base_id): each for each in fragments if each.deletion}


def _deleted(storage: Storage, manifest: Manifest, fragment: Fragment) -> int:
    """Rows that a fragment's deletion file names; 0 if neither the manifest nor the file gives the count."""
    if fragment.deletion is None or fragment.deletion.count is not None:
        return (fragment.deletion.count or 0) if fragment.deletion else 0
    try:
        return deleted_rows(storage, manifest, fragment)
    except DamagedTableError:
        return 0


# -- reading ------------------------------------------------------------------------------------------------------


def manifests(storage: Storage, files: Sequence[VersionFile], batch: int = _BATCH) -> Iterator[Manifest]:
    """The manifests in the given order, without those that are cleaned up concurrently.

    batch : how many are read at once at first; 1 if one is likely to suffice.
    """

    def read(file: VersionFile) -> Manifest | None:
        try:
            return read_manifest(storage, file)
        except FileNotFoundError:
            return None

    at = 0
    while at < len(files):
        yield from (found for found in in_parallel(storage, files[at : at + batch], read) if found is not None)
        at, batch = at + batch, min(batch * 4, _BATCH)
