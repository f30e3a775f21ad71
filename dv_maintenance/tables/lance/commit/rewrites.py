"""Commits of rewrites, one version each, so that a conflict discards only one rewrite.

Lance's commit of a compaction fails if a concurrent delete changed one of its fragments. If deletes are the only
changes, the rewritten fragments are kept: deletion files of our own delete the same rows in the new fragments, and we
commit the replacement as a Rewrite operation ourselves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.carry import Source, carry_over
from dv_maintenance.errors import (
    ConflictError,
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    UsageError,
)
from dv_maintenance.files.lance_library import lance_errors, open_dataset
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.commit.deletion_files import described, new_deletion_file, write_deletions
from dv_maintenance.tables.lance.commit.indices import update_indices
from dv_maintenance.tables.lance.layout import DELETIONS
from dv_maintenance.tables.lance.log.history import changes_since
from dv_maintenance.tables.lance.log.manifest import Fragment
from dv_maintenance.tables.lance.log.transaction import OPERATION
from dv_maintenance.tables.lance.rows.files import deletions_of
from dv_maintenance.tables.lance.snapshot import LanceSnapshot, load_snapshot
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.publish import Overtaken, Rules, publish
from dv_maintenance.tables.table import CommitOutcome, Rebased, Replacement

if TYPE_CHECKING:
    from collections.abc import Mapping

# The property of a transaction that Lance shows as its message.
_MESSAGE: Final = "lance.commit.message"

# Pairs of a source fragment as it was read, and as it is now (None if it is gone).
_Sources = list[tuple[Fragment, Fragment | None]]

# These say that nothing was committed.
_NOT_COMMITTED: Final = (ConflictError, RefusedError, UsageError, StorageDeniedError)

# Operations that keep the rows of a fragment in place, or delete them.
_HARMLESS: Final = frozenset({"Append", "Delete", "Update", "ReserveFragments", "CreateIndex", "UpdateConfig"})


def commit(
    storage: Storage,
    base: LanceSnapshot,
    replacements: Sequence[Replacement],
    *,
    operation: Mapping[str, Any],
    max_attempts: int = 200,
) -> CommitOutcome:
    """See ``Table.commit``. Every replacement is committed as its own version.

    A replacement that loses the race ``max_attempts`` times is reported as lost, not raised: earlier replacements may
    already be committed.

    Raises
    ------
    ConflictError, RefusedError, UsageError, and StorageDeniedError that is ``uncommitted`` : nothing was committed.
        After the first commit such an error is not raised, since a caller that catches it deletes all new files.
        Instead it is the reason why the rest is lost.
    StorageError, DamagedTableError : whether the current replacement was committed is unknown; earlier commits stand.
    """
    storage.prove_put_if_absent("_transactions")
    done: list[_Done] = []
    for number, each in enumerate(replacements):
        try:
            done.append(_Commit(storage, base, each, str(operation["name"]), max_attempts).run())
        except DvMaintenanceError as error:
            first = all(before.version is None for before in done)
            certain = error.uncommitted and isinstance(error, _NOT_COMMITTED)
            error.uncommitted = error.uncommitted and first
            if first or not certain:
                raise
            done += [_Done(left.id, 1, reason=error.message) for left in replacements[number:]]
            break
    committed = [each for each in done if each.version is not None]
    return CommitOutcome(
        version=max((each.version for each in committed if each.version is not None), default=None),
        committed=tuple(each.id for each in committed),
        lost=tuple(each.id for each in done if each.version is None),
        attempts=max((each.attempts for each in done), default=1),
        reason="; ".join(dict.fromkeys(each.reason for each in done if each.reason)),
        rebased=tuple(each.rebased for each in committed if each.rebased is not None),
        versions={each.id: each.version for each in committed if each.version is not None},
        problems=update_indices(storage) if committed else (),
    )


@dataclass(frozen=True, slots=True)
class _Done:
    id: str
    attempts: int
    version: int | None = None
    reason: str = ""
    rebased: Rebased | None = None


class _LostError(Exception):
    """Why the replacement is lost."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The inputs of our own commit, prepared before the first attempt.

    An attempt must be short to win the race, and the metadata of fragments with their own row ids is slow to read.
    """

    dataset: Any
    olds: list[Any]
    outputs: list[Any]


@dataclass(slots=True)
class _Commit(Rules[_Sources]):
    """The commit of one replacement. Lance itself creates the version, or refuses if another writer was faster."""

    storage: Storage
    base: LanceSnapshot
    replacement: Replacement
    name: str
    max_attempts: int
    at_plan: dict[int, DeletionVector] = field(default_factory=dict)  # deletions of the fragments when they were read
    prepared: _Prepared | None = None
    attempts: int = 0
    use_lance: bool = field(init=False)
    now: LanceSnapshot = field(init=False)
    rebased: Rebased | None = None

    def __post_init__(self) -> None:
        self.use_lance = "lance" in self.replacement.details

    def run(self) -> _Done:
        try:
            published = publish(self, max_attempts=self.max_attempts)
        except _LostError as error:
            return _Done(self.replacement.id, self.attempts, reason=str(error))
        return _Done(self.replacement.id, self.attempts, published.version, rebased=self.rebased)

    @property
    def table(self) -> str:
        return self.storage.uri

    def catch_up(self) -> None:
        self.attempts += 1
        self.now = load_snapshot(self.storage)

    def draft(self) -> _Sources:
        sources = self._sources(self.now)
        if (reason := self._not_carriable(self.now, sources)) is not None:
            raise _LostError(reason)
        return sources

    def create(self, draft: _Sources) -> int:
        untouched = all(new is not None and new.deletion == old.deletion for old, new in draft)
        try:
            if self.use_lance and untouched:
                return self._commit_by_lance()
            version, self.rebased = self._commit_by_us(self.now, draft)
        except ConflictError as error:
            # After a concurrent delete or a new index Lance refuses its own result.
            self.use_lance = False
            raise Overtaken(error.message) from error
        except StorageDeniedError as error:
            if self._still_live(draft):
                raise
            raise StorageUnavailableError(error.message, table=self.table, next_step=error.next_step) from error
        return version

    def _still_live(self, sources: _Sources) -> bool:
        """Whether the fragments are live after a commit that was denied: it takes several calls, and Lance does not say
        which of them failed.
        """
        try:
            now = {_first(each) for each in load_snapshot(self.storage).fragments}
        except DvMaintenanceError:
            return False
        return all(_first(old) in now for old, new in sources if new is not None)

    def defeat(self, attempts: int) -> _LostError:
        return _LostError(f"lost all {attempts} attempts to other writers")

    def _sources(self, now: LanceSnapshot) -> _Sources:
        """The sources in the table's order, which is also the order of their rows in the new fragments."""
        wanted = set(self.replacement.inputs)
        olds = [old for key, old in zip(_keys(self.base), self.base.fragments, strict=True) if key in wanted]
        live = {(each.id, _first(each)): each for each in now.fragments}
        return [(old, live.get((old.id, _first(old)))) for old in olds]

    def _not_carriable(self, now: LanceSnapshot, sources: Sequence[tuple[Fragment, Fragment | None]]) -> str | None:
        """Why concurrent changes cannot be carried over; ``None`` if nothing known so far prevents it."""
        if now.version == self.base.version:
            return None
        if now.version < self.base.version:
            return "the table was recreated"
        if now.manifest.field_records != self.base.manifest.field_records:
            return "the schema changed"
        for old, new in sources:
            if new is not None and new.files != old.files:
                return f"the data files of fragment {old.id} changed"
        if all(new is not None for _, new in sources):
            return None
        if all(new is None for _, new in sources):
            return "none of the fragments exists any more"
        changes = changes_since(self.storage, self.base.version)
        if len(changes.commits) != now.version - self.base.version and changes.version == now.version:
            return "fragments are gone, and so are the versions that would say why"
        others = sorted({each.operation for each in changes.commits} - _HARMLESS)
        return f"fragments are gone, after {', '.join(others)}" if others else None

    # -- Lance's own commit --------------------------------------------------------------------------------------------

    def _commit_by_lance(self) -> int:
        from lance.optimize import Compaction, RewriteResult

        dataset = self._open()
        # The library's type stubs lack this class.
        results: Any = RewriteResult
        with self._errors():
            Compaction.commit(dataset, [results.from_json(self.replacement.details["lance"])])
            return int(dataset.version)

    # -- our own commit -----------------------------------------------------------------------------------------------

    def _commit_by_us(
        self, now: LanceSnapshot, sources: Sequence[tuple[Fragment, Fragment | None]]
    ) -> tuple[int, Rebased | None]:
        from lance import LanceDataset, LanceOperation, Transaction
        from lance.fragment import DeletionFile

        if self.prepared is None:
            self.prepared = self._prepare({old.id for old, _ in sources})
        prepared = self.prepared
        carried = self._carried(now, sources, [each.physical_rows for each in prepared.outputs])
        stay = {old.id for old, new in sources if new is not None}
        # Matched by id: their deletion files may differ by now.
        olds = [each for each in prepared.olds if each.id in stay]
        if len(olds) < len(stay):
            self.prepared = None
            raise ConflictError("removed fragments exist again", table=self.storage.uri, version=now.version)
        # Lance finds the old fragments by id. It assigns no ids to the new ones: we choose them, since a deletion file
        # is named after its fragment and written before the commit. If another commit takes an id first, Lance refuses
        # this one.
        number = (now.manifest.max_fragment_id or 0) + 1
        written: list[str] = []
        new = []
        for fragment, deleted in zip(prepared.outputs, carried, strict=True):
            if len(deleted) == fragment.physical_rows:
                continue
            deletion = None
            if deleted:
                file = new_deletion_file(number, now.version, deleted)
                write_deletions(self.storage, file, deleted)
                written.append(f"{DELETIONS}/{file.name}")
                deletion = DeletionFile(**described(file))
            new.append(replace(fragment, id=number, deletion_file=deletion))
            number += 1
        rewrite = LanceOperation.Rewrite(
            groups=[LanceOperation.RewriteGroup(old_fragments=olds, new_fragments=new)], rewritten_indices=[]
        )
        try:
            with self._errors():
                said = {OPERATION: self.name, _MESSAGE: self.name}
                transaction = Transaction(now.version, rewrite, str(uuid4()), said)
                committed = LanceDataset.commit(prepared.dataset, transaction)
        except ConflictError:
            self.storage.delete(written)
            raise
        rebased = None
        if any(carried) or len(stay) < len(sources):
            keys = dict(zip(_keys(now), now.fragments, strict=True))
            inputs = tuple(key for key, each in keys.items() if each.id in stay)
            rebased = Rebased(self.replacement.id, inputs, tuple(len(deleted) for deleted in carried))
        return int(committed.version), rebased

    def _prepare(self, sources: Collection[int]) -> _Prepared:
        from lance.fragment import FragmentMetadata

        dataset = self._open()
        with self._errors():
            olds = [each.metadata for each in dataset.get_fragments() if each.fragment_id in sources]
            written = self.replacement.details.get("lance")
            outputs = json.loads(written)["new_fragments"] if written else []
            return _Prepared(dataset, olds, [FragmentMetadata.from_json(json.dumps(each)) for each in outputs])

    def _carried(
        self, now: LanceSnapshot, sources: Sequence[tuple[Fragment, Fragment | None]], outputs: Sequence[int]
    ) -> list[DeletionVector]:
        if not outputs:
            return []
        for old, _ in sources:
            if old.id not in self.at_plan:
                self.at_plan[old.id] = deletions_of(self.storage, self.base.manifest, old)
        found = [
            Source(
                (old.physical_rows or 0) - (old.deletion.count or 0 if old.deletion else 0),
                self.at_plan[old.id],
                None if new is None else deletions_of(self.storage, now.manifest, new),
            )
            for old, new in sources
        ]
        try:
            return carry_over(found, outputs)
        except ValueError as error:  # an older version was restored
            raise _LostError(str(error)) from error

    # -- Lance ---------------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        with self._errors():
            return open_dataset(self.storage)

    def _errors(self) -> Any:
        return lance_errors(f"the commit of {self.replacement.id}", table=self.storage.uri, version=self.base.version)


def _keys(snapshot: LanceSnapshot) -> list[FileKey]:
    columns = (snapshot.files[name].to_pylist() for name in ("path", "dv_id"))
    return [FileKey(path, dv) for path, dv in zip(*columns, strict=True)]


def _first(fragment: Fragment) -> str:
    """Path of the first data file. It distinguishes fragments with the same id in a table that was recreated."""
    return fragment.files[0].path if fragment.files else ""
