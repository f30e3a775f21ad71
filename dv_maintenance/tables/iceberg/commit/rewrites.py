"""Commit rewrites: a ``replace`` snapshot in which new files hold the live rows of old ones.

Every attempt checks the replacements against the newest snapshot. A file that is still there with the same deletes is
replaced. If its deletion vector (DV) grew, the new files are kept, and these rows are deleted in them as well. New
files have the age of the snapshot that was read, so that equality deletes that came later apply to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.carry import Source, carry_over
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import strings
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.gates import Input, check_replacements, check_stored, wrong
from dv_maintenance.tables.iceberg.commit.deletes import NewDv
from dv_maintenance.tables.iceberg.commit.manifests import NewEntry
from dv_maintenance.tables.iceberg.commit.metrics import file_record
from dv_maintenance.tables.iceberg.commit.publish import Draft, publish
from dv_maintenance.tables.iceberg.commit.unneeded import unneeded_deletes
from dv_maintenance.tables.iceberg.rows.rewrite_tasks import output_folder
from dv_maintenance.tables.iceberg.rows.tasks import stored_source
from dv_maintenance.tables.iceberg.writable import no_deletes
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.publish import before_the_commit
from dv_maintenance.tables.staying import Stay, outcome_of

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
    from dv_maintenance.tables.table import CommitOutcome, Replacement
    from dv_maintenance.tables.work import OutputFile

_NONE: Final = DeletionVector.empty()

Row = Mapping[str, Any]
"""A row of a snapshot's files."""


def commit_replacements(
    layout: Layout,
    base: IcebergSnapshot,
    replacements: Sequence[Replacement],
    *,
    operation: Mapping[str, Any],
    max_attempts: int = 10,
) -> CommitOutcome:
    """Commit the replacements that are still valid, see ``Table.commit``.

    Raises
    ------
    VerificationError : the replacements would change what a query returns; nothing was committed.
    ConflictError, StorageError, DamagedTableError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    del operation  # the specification has one for all of them
    commit = _Commit(
        layout, base, replacements, live_rows(base, {key.path for each in replacements for key in each.inputs})
    )
    with before_the_commit():
        commit.verify()
    published = publish(layout, base, commit.compose, writes="rewrite", max_attempts=max_attempts)
    return outcome_of(published, commit.stay, commit.lost, _key)


def live_rows(snapshot: IcebergSnapshot, paths: set[str]) -> dict[str, Row]:
    """The live files with these paths."""
    files = snapshot.files.filter(pc.is_in(snapshot.files["path"], value_set=strings(sorted(paths))))
    return {row["path"]: row for row in files.to_pylist()}


def stored_dv(layout: Layout, snapshot: IcebergSnapshot, row: Row) -> DeletionVector:
    """The deleted rows of a file, equality deletes aside. Raises DamagedDeletionVectorError, StorageError."""
    ref = stored_source(layout, snapshot, row).dv
    return _NONE if ref is None else load(ref, layout.storage.get_range, rows=row["record_count"])


@dataclass(slots=True)
class _Commit:
    """The commit, decided again in each attempt. ``live``: inputs at the base snapshot, by path."""

    layout: Layout
    base: IcebergSnapshot
    replacements: Sequence[Replacement]
    live: Mapping[str, Row]
    stay: dict[str, Stay[Row]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    _records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _read: dict[FileKey, DeletionVector] = field(default_factory=dict)

    def verify(self) -> None:
        """Refuse replacements that are wrong regardless of concurrent commits."""
        inputs = {
            FileKey(row["path"], row["dv_id"]): Input(row["partition"], row["physical_rows"], row["deleted_rows"])
            for row in self.live.values()
        }
        check_replacements(self.layout.storage, self.base, self.replacements, inputs)
        for each in self.replacements:
            codes = {self.live[key.path]["partition_code"] for key in each.inputs if key.path in self.live}
            if len(codes) > 1:
                raise wrong(self.base, f"replacement {each.id} has inputs of several partitions or specifications")
        self._check_new(self.base)
        check_stored(self.layout.storage, self.base, [each for one in self.replacements for each in one.outputs])

    def _check_new(self, now: IcebergSnapshot) -> None:
        """Not a VerificationError: after one, the caller deletes the new files, and this file is live."""
        paths = {self._raw(each, output) for each in self.replacements if each.inputs for output in each.outputs}
        if taken := live_rows(now, paths):
            raise DamagedTableError(
                f"a new file has the name of a live one: {min(taken)}",
                at=now,
                next_step="search the history: a commit of this run may have succeeded",
            )

    def _raw(self, each: Replacement, output: OutputFile) -> str:
        """A new file as the table spells it."""
        folder = output_folder(self.layout, self.base, each.inputs[0].path)
        return f"{folder}/{self.layout.storage.path_of_uri(output.uri).rpartition('/')[2]}"

    # -- one attempt -----------------------------------------------------------------------------------------------

    def compose(self, now: IcebergSnapshot) -> Draft | None:
        self.stay, self.lost = {}, {}
        self._check_new(now)
        found = live_rows(now, set(self.live))
        strange = now.strange_after(self.base)
        for each in self.replacements:
            stay = strange or self._stay(each, now, found)
            if isinstance(stay, str):
                self.lost[each.id] = stay
            else:
                self.stay[each.id] = stay
        if not self.stay:
            return None
        removed = frozenset(row["path"] for stay in self.stay.values() for row in stay.inputs)
        added, dvs = self._added()
        return Draft(
            "replace",
            removed,
            unneeded_deletes(now, removed, added),
            tuple(added),
            tuple(dvs),
        )

    def _stay(self, each: Replacement, now: IcebergSnapshot, found: Mapping[str, Row]) -> Stay[Row] | str:
        """The replacement as it can be committed, or why it is lost."""
        inputs = []
        for key in each.inputs:
            old, new = self.live.get(key.path), found.get(key.path)
            if old is None or old["dv_id"] != key.dv_id:
                return f"{key.path} was not live at the planned snapshot"
            if new is None:
                return f"another writer removed or rewrote {key.path}"
            inputs.append((old, new))
        left = tuple(new for _, new in inputs)
        if all(deletes_of(old) == deletes_of(new) for old, new in inputs):
            return Stay(left, (_NONE,) * len(each.outputs), carried=tuple(_key(new) for new in left) != each.inputs)
        if not each.kept or any(old["equality_deletes"] for old, _ in inputs):
            return "another writer deleted rows of its inputs, and where these rows are in the new files is unknown"
        if why := no_deletes(now):
            return f"another writer deleted rows of its inputs, and {why}"
        sources = []
        for (old, new), kept in zip(inputs, each.kept, strict=True):
            if old["dv_file"] is not None and new["dv_file"] is None:
                return f"another writer restored rows of {old['path']}"
            before, after = self._dv(self.base, old), self._dv(now, new)
            if before - after:
                return f"another writer restored rows of {old['path']}"
            sources.append(Source(kept, before, after))
        deleted = carry_over(sources, [output.rows for output in each.outputs])
        return Stay(left, tuple(deleted), carried=True)

    def _dv(self, snapshot: IcebergSnapshot, row: Row) -> DeletionVector:
        key = _key(row)
        if key not in self._read:
            self._read[key] = stored_dv(self.layout, snapshot, row)
        return self._read[key]

    def _added(self) -> tuple[list[NewEntry], list[NewDv]]:
        """Entries of the new files with live rows, and their DVs."""
        files, dvs, sequence = [], [], newest_sequence(self.base)
        for each in self.replacements:
            if each.id not in self.stay:
                continue
            inputs = [self.live[key.path] for key in each.inputs]
            for output, deleted in zip(each.outputs, self.stay[each.id].deleted, strict=True):
                if deleted.cardinality == output.rows:
                    continue
                # By its values: a newer snapshot may number the partitions in another way.
                partition = self.base.partitions[inputs[0]["partition_code"]].place
                path = self._raw(each, output)
                # One file keeps its order; several in a row do not have one.
                order = inputs[0]["sort_order_id"] if len(inputs) == 1 and not each.order_by else None
                record = {**self._record(output, path), "140": order}
                files.append(NewEntry(0, partition, sequence, record))
                if deleted:
                    dvs.append(NewDv(path, deleted, partition))
        return files, dvs

    def _record(self, output: OutputFile, path: str) -> Mapping[str, Any]:
        if path not in self._records:
            self._records[path] = file_record(self.layout.storage, self.base, output, path)
        return self._records[path]


def newest_sequence(snapshot: IcebergSnapshot) -> int:
    """The sequence number that rows of the snapshot have at most, so that its deletes don't apply to a new file of them
    but later ones do. A snapshot that does not state its own may still have files with one.
    """
    deletes = snapshot.deletes
    tables = (snapshot.files, deletes.dvs, deletes.positions)
    found = [pc.max(each["data_sequence"]).as_py() or 0 for each in tables]
    stated = 0 if snapshot.entry is None else snapshot.entry.sequence
    return max(stated, *found, *(each.sequence for each in deletes.equality))


def _key(row: Row) -> FileKey:
    return FileKey(row["path"], row["dv_id"])


def deletes_of(row: Row) -> tuple[Any, ...]:
    """Which rows of a file are deleted by position. Equality deletes that came later apply to the new file, too."""
    return row["dv_file"], row["dv_offset"], row["deleted_rows"], None if row["dv_file"] else row["dv_id"]
