"""The newest version, computed from an earlier snapshot and the commits since.

This serves inspections, never a commit: see ``tables.incremental``. It checks everything that is cheap to check. The
version that it starts from must still have the same commit file and the same checkpoint. A newer checkpoint must hold
the number of files that the commits lead to. In doubt the result is ``None``, and the caller reads the whole log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.files.arrays import strings, taken
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import PRINTS, snapshot_of
from dv_maintenance.tables.delta.log.actions import Metadata, Transaction
from dv_maintenance.tables.delta.log.checkpoint import read_checkpoint
from dv_maintenance.tables.delta.log.fingerprints import among, fingerprints
from dv_maintenance.tables.delta.log.ratified import RatifiedStorage
from dv_maintenance.tables.delta.log.replay import no_collection
from dv_maintenance.tables.delta.log.segment import CommitFile, LogSegment, commit_files, read_commits, segment
from dv_maintenance.tables.delta.log.tail import Tail
from dv_maintenance.tables.delta.log.timeline import in_commit_timestamp
from dv_maintenance.tables.delta.rows.files import ADD_COLUMNS, files_table
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.model import SINCE, Since
from dv_maintenance.tables.splice import spliced

# With more commits, a replay takes little longer, and releases what earlier inspections have kept.
_COMMITS: Final = 1000


class _DoubtError(Exception):
    """The whole log has to be read."""


@dataclass(frozen=True, slots=True, eq=False)
class _Live:
    """The live files of a version, the fingerprints of their paths, and other values computed from them."""

    files: pa.Table
    prints: Any
    domains: Mapping[str, str]
    transactions: Mapping[str, Transaction]
    derived: Mapping[str, Any]

    def after(self, storage: Storage, commits: Sequence[CommitFile], metadata: Metadata) -> _Live:
        """The live files after these commits."""
        tail = Tail(storage.uri)
        for file, actions in read_commits(storage, commits):
            tail.read(actions, file.path)
        if tail.protocol is not None or tail.metadata is not None:
            raise _DoubtError
        domains = {**self.domains, **tail.domains}
        added = files_table(tail.table_of("add", ADD_COLUMNS), metadata)
        # Without SINCE, or each snapshot would keep all earlier ones alive.
        computed = {name: value for name, value in self.derived.items() if name != SINCE}
        since = Since(computed, self._gone(tail, added))
        return _Live(
            spliced(self.files, since, added),
            since.spliced(self.prints, fingerprints(added["path"])),
            {name: value for name, value in domains.items() if value is not None},
            {**self.transactions, **tail.transactions},
            {SINCE: since},
        )

    def _gone(self, tail: Tail, added: pa.Table) -> Any:
        """Positions of the files that the commits removed or replaced, in order."""
        touched = pa.chunked_array([strings(list(dict.fromkeys(path for path, _ in tail.latest)))])
        found = among(self.prints, fingerprints(touched))
        keys = list(
            zip(
                taken(self.files["path"], found).to_pylist(),
                taken(self.files["dv_id"], found).to_pylist(),
                strict=True,
            )
        )
        gone = [key in tail.latest for key in keys]
        live = [path for (path, _), dead in zip(keys, gone, strict=True) if not dead]
        paths = added["path"].to_pylist()
        if len({*live, *paths}) < len(live) + len(paths):
            raise _DoubtError  # a file that is live twice
        return found[np.array(gone, bool)]

    def at_checkpoint(self, storage: Storage, files: LogSegment, kept: DeltaSnapshot) -> _Live:
        """The same files, if the checkpoint holds the same number. All other actions come from the checkpoint, which
        leaves out expired transactions.
        """
        found = read_checkpoint(storage, [each.path for each in files.checkpoint_files], {})
        said = Tail(storage.uri)
        said.read(found.actions, f"checkpoint {files.checkpoint_version}")
        if (found.adds, said.protocol, said.metadata) != (self.files.num_rows, kept.protocol, kept.metadata):
            raise _DoubtError
        domains = {name: value for name, value in said.domains.items() if value is not None}
        return _Live(self.files, self.prints, domains, said.transactions, self.derived)


def advanced(storage: Storage, kept: DeltaSnapshot, version: int) -> DeltaSnapshot | None:
    """The snapshot of ``version``, computed from an earlier one; ``None`` if the whole log must be read.

    Its files may be in another order than a replay's.
    """
    try:
        return _advanced(storage, kept, version)
    except (_DoubtError, DvMaintenanceError, FileNotFoundError):
        # A replay reports the problem better.
        return None


@no_collection()
def _advanced(storage: Storage, kept: DeltaSnapshot, version: int) -> DeltaSnapshot:
    # A version with warnings was read in an unusual way, or has files that cannot be told apart.
    if kept.warnings or not kept.segment.commit or version < kept.version:
        raise _DoubtError
    files = segment(storage, version)
    commits = _commits(storage, files, kept)
    live = _Live(kept.files, _prints(kept), kept.domains, kept.transactions, kept.derived)
    if files.checkpoint_version != kept.segment.checkpoint_version:
        at = files.checkpoint_version
        if at is None or at < kept.version:
            raise _DoubtError
        live = live.after(storage, [each for each in commits if each.start <= at], kept.metadata)
        live = live.at_checkpoint(storage, files, kept)
        commits = [each for each in commits if each.start > at]
    elif files.checkpoint_files != kept.segment.checkpoint_files:
        raise _DoubtError
    elif not commits:
        return kept
    live = live.after(storage, commits, kept.metadata)
    found = snapshot_of(
        storage,
        files,
        live.files,
        protocol=kept.protocol,
        metadata=kept.metadata,
        domains=live.domains,
        transactions=live.transactions,
        warnings=files.warnings,
    )
    if found.warnings:
        raise _DoubtError
    found.derived.update(live.derived, **{PRINTS: live.prints})
    return found


def _commits(storage: Storage, files: LogSegment, kept: DeltaSnapshot) -> list[CommitFile]:
    """The commits after the kept version, without compacted files."""
    at = files.checkpoint_version
    whole = not files.compacted and (at is None or at < kept.version)
    found = files.commits if whole else commit_files(storage, kept.version - 1)[0]
    found = [each for each in found if kept.version <= each.start <= files.version]
    first = found[0] if found else None
    if [each.start for each in found] != list(range(kept.version, files.version + 1)) or len(found) > _COMMITS:
        raise _DoubtError
    # After a replacement of the table, the version may belong to another history.
    if first is None or first.size != kept.segment.size or not _same_time(storage, first, kept):
        raise _DoubtError
    return found[1:]


def _same_time(storage: Storage, first: CommitFile, kept: DeltaSnapshot) -> bool:
    """Whether a commit was made when the kept one was. Publishing a ratified commit gives its file another time."""
    if first.modified == kept.segment.modified:
        return True
    return isinstance(storage, RatifiedStorage) and in_commit_timestamp(storage, first) == kept.in_commit_timestamp


def _prints(kept: DeltaSnapshot) -> Any:
    if PRINTS not in kept.derived:
        kept.derived[PRINTS] = fingerprints(kept.files["path"])
    return kept.derived[PRINTS]
