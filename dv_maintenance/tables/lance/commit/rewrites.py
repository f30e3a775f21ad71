"""Commits of rewrites, each on its own, so that a conflict costs only itself.

Lance's commit of a compaction gives up when anybody deleted from a fragment meanwhile. Where deletes are all that
happened the work is kept: the rows that others deleted are deleted in the new fragments too, by deletion files of our
own, and the exchange is committed as an operation of our making.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.carry import Source, carry_over
from dv_maintenance.errors import ConflictError, RefusedError, UsageError
from dv_maintenance.files.lance_library import lance_errors, open_dataset
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.commit.deletion_files import described, new_deletion_file, write_deletions
from dv_maintenance.tables.lance.commit.indices import keep_up
from dv_maintenance.tables.lance.layout import DELETIONS
from dv_maintenance.tables.lance.log.history import changes_since
from dv_maintenance.tables.lance.log.manifest import Fragment
from dv_maintenance.tables.lance.rows.files import deletions_of
from dv_maintenance.tables.lance.snapshot import LanceSnapshot, load_snapshot
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import CommitOutcome, Rebased, Replacement

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["commit"]

_log = logging.getLogger(__name__)

# What leaves the rows of a fragment where they are, or deletes them.
_HARMLESS: Final = frozenset({"Append", "Delete", "Update", "ReserveFragments", "CreateIndex", "UpdateConfig"})


def commit(
    storage: Storage,
    base: LanceSnapshot,
    replacements: Sequence[Replacement],
    *,
    operation: Mapping[str, Any],
    max_attempts: int,
) -> CommitOutcome:
    """See ``Table.commit``. Every replacement has a version of its own; a race that is lost ``max_attempts`` times is
    reported as lost, since others may be committed by then.

    Raises
    ------
    RefusedError : nothing was committed. Behind a commit it is told as the reason why the others are lost, since who
        gets an error like this one deletes all new files.
    StorageError, DamagedTableError : of what was committed then nobody knows; what was committed before stands.
    """
    storage.prove_put_if_absent("_transactions")
    done: list[_Done] = []
    for number, each in enumerate(replacements):
        try:
            done.append(_Commit(storage, base, each, str(operation["name"]), max_attempts).run())
        except (ConflictError, RefusedError, UsageError) as error:
            if all(before.version is None for before in done):
                raise
            done += [_Done(left.id, 1, reason=error.message) for left in replacements[number:]]
            break
    held = [each for each in done if each.version is not None]
    return CommitOutcome(
        version=max((each.version for each in held if each.version is not None), default=None),
        committed=tuple(each.id for each in held),
        lost=tuple(each.id for each in done if each.version is None),
        attempts=max((each.attempts for each in done), default=1),
        reason="; ".join(dict.fromkeys(each.reason for each in done if each.reason)),
        rebased=tuple(each.rebased for each in held if each.rebased is not None),
        versions={each.id: each.version for each in held if each.version is not None},
        problems=keep_up(storage) if held else (),
    )


@dataclass(frozen=True, slots=True)
class _Done:
    id: str
    attempts: int
    version: int | None = None
    reason: str = ""
    rebased: Rebased | None = None


class _NotCarriedError(Exception):
    """Why what others did cannot be carried over."""


@dataclass(frozen=True, slots=True)
class _Hand:
    """What a commit of ours takes, ready before the first attempt: a race is won by being quick, and fragments with
    row ids of their own take a while to be read.
    """

    dataset: Any
    olds: list[Any]
    outputs: list[Any]


@dataclass(slots=True)
class _Commit:
    storage: Storage
    base: LanceSnapshot
    replacement: Replacement
    name: str
    max_attempts: int
    at_plan: dict[int, DeletionVector] = field(default_factory=dict)  # deletions of fragments when they were read
    hand: _Hand | None = None

    def run(self) -> _Done:
        attempts, by_lance = 0, bool(self.replacement.native)
        while attempts < self.max_attempts:
            attempts += 1
            now = load_snapshot(self.storage)
            sources = self._sources(now)
            if (reason := self._gone_astray(now, sources)) is not None:
                return _Done(self.replacement.id, attempts, reason=reason)
            untouched = all(new is not None and new.deletion == old.deletion for old, new in sources)
            try:
                if by_lance and untouched:
                    version, rebased = self._by_lance(), None
                else:
                    version, rebased = self._by_hand(now, sources)
            except _NotCarriedError as error:
                return _Done(self.replacement.id, attempts, reason=str(error))
            except ConflictError:
                # A delete, or a new index: Lance would not take the work any more.
                _log.info("%s: attempt %d lost against another writer", self.storage.uri, attempts)
                by_lance = False
                continue
            return _Done(self.replacement.id, attempts, version, rebased=rebased)
        return _Done(self.replacement.id, attempts, reason=f"others were faster in {attempts} attempts")

    def _sources(self, now: LanceSnapshot) -> list[tuple[Fragment, Fragment | None]]:
        """The fragments as they were read, in the table's order, which is that of their rows in the new ones; and as
        they are now, ``None`` where they are not there any more.
        """
        wanted = set(self.replacement.inputs)
        olds = [old for key, old in zip(_keys(self.base), self.base.fragments, strict=True) if key in wanted]
        live = {(each.id, _first(each)): each for each in now.fragments}
        return [(old, live.get((old.id, _first(old)))) for old in olds]

    def _gone_astray(self, now: LanceSnapshot, sources: Sequence[tuple[Fragment, Fragment | None]]) -> str | None:
        """Why nothing can be carried over, if so."""
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
            return "none of the fragments is there any more"
        changes = changes_since(self.storage, self.base.version)
        if len(changes.commits) != now.version - self.base.version and changes.version == now.version:
            return "fragments are gone, and so are the versions that would say why"
        others = sorted({each.operation for each in changes.commits} - _HARMLESS)
        return f"fragments are gone, after {', '.join(others)}" if others else None

    # -- Lance's own commit --------------------------------------------------------------------------------------------

    def _by_lance(self) -> int:
        from lance.optimize import Compaction, RewriteResult

        dataset = self._open()
        # The library's own description of its types leaves this one out.
        results: Any = RewriteResult
        with self._errors():
            Compaction.commit(dataset, [results.from_json(self.replacement.native)])
            return int(dataset.version)

    # -- ours ----------------------------------------------------------------------------------------------------------

    def _by_hand(
        self, now: LanceSnapshot, sources: Sequence[tuple[Fragment, Fragment | None]]
    ) -> tuple[int, Rebased | None]:
        from lance import LanceDataset, LanceOperation
        from lance.fragment import DeletionFile

        if self.hand is None:
            self.hand = self._hand({old.id for old, _ in sources})
        hand = self.hand
        carried = self._carried(now, sources, [each.physical_rows for each in hand.outputs])
        stay = {old.id for old, new in sources if new is not None}
        # By their ids: that they have other deletion files by now is what this is about.
        olds = [each for each in hand.olds if each.id in stay]
        if len(olds) < len(stay):
            self.hand = None
            raise ConflictError("fragments that were gone are there again", table=self.storage.uri, version=now.version)
        # Lance finds the old fragments by their ids, and gives none to the new ones: a deletion file is named after its
        # fragment before that is committed. Where another commit takes the id first, Lance refuses this one.
        number = (now.manifest.max_fragment_id or 0) + 1
        written: list[str] = []
        new = []
        for fragment, deleted in zip(hand.outputs, carried, strict=True):
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
                committed = LanceDataset.commit(
                    hand.dataset, rewrite, read_version=now.version, commit_message=self.name
                )
        except ConflictError:
            self.storage.delete(written)
            raise
        rebased = None
        if any(carried) or len(stay) < len(sources):
            keys = dict(zip(_keys(now), now.fragments, strict=True))
            inputs = tuple(key for key, each in keys.items() if each.id in stay)
            rebased = Rebased(self.replacement.id, inputs, tuple(len(deleted) for deleted in carried))
        return int(committed.version), rebased

    def _hand(self, sources: Collection[int]) -> _Hand:
        from lance.fragment import FragmentMetadata

        dataset = self._open()
        with self._errors():
            olds = [each.metadata for each in dataset.get_fragments() if each.fragment_id in sources]
            outputs = json.loads(self.replacement.native)["new_fragments"] if self.replacement.native else []
            return _Hand(dataset, olds, [FragmentMetadata.from_json(json.dumps(each)) for each in outputs])

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
            raise _NotCarriedError(str(error)) from error

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
    """Tells a fragment from another one with the same id, of a table that was recreated."""
    return fragment.files[0].path if fragment.files else ""
