"""Checks before a rewrite is committed. They hold for every format, whatever other writers commit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import VerificationError, located
from dv_maintenance.storage.failures import name_taken
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.registry import known_format

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.model import FileKey, Snapshot
    from dv_maintenance.tables.table import Replacement, Table
    from dv_maintenance.tables.work import OutputFile

# Names of versions: Delta, Iceberg, Lance, Paimon.
_VERSION: Final = re.compile(r"\d{20}\.json|v\d+(?:\.gz)?\.metadata\.json|\d+\.manifest|snapshot-\d+")


@dataclass(frozen=True, slots=True)
class Input:
    """A live logical file as the log describes it.

    rows : physical rows, ``None`` if the log does not record them.
    """

    partition: str
    rows: int | None
    deleted_rows: int


def check_committable(table: Table, *, dry_run: bool = False) -> None:
    """Before work that a commit has to follow.

    dry_run : leave nothing, not even for a moment, see ``Rehearsal.check_creatable``.

    Raises
    ------
    RefusedError : a folder that a commit writes to is a link, or a folder has the name of a version.
    StorageDeniedError : the storage would deny the commit.
    """
    known = known_format(table.format)
    storage = Rehearsal.of(table.storage) if dry_run else table.storage
    for folder in (known.commits, *known.commits_also) if known else ():
        with located(table.uri):
            storage.check_creatable(folder)
        if storage.on_disk(folder) and (taken := next(filter(_VERSION.fullmatch, storage.folders(folder)), None)):
            raise name_taken(table.uri, f"{folder}/{taken}")


def check_replacements(
    storage: Storage, base: Snapshot, replacements: Sequence[Replacement], live: Mapping[FileKey, Input]
) -> None:
    """Check that replacements keep every live row. Skips those with an input that is not ``live`` at ``base``: the
    commit reports them as lost.

    Raises
    ------
    VerificationError : the replacements would change what a query returns.
    """
    for what, names in (
        ("replacements share an id", [each.id for each in replacements]),
        ("replacements share an input", [key for each in replacements for key in each.inputs]),
        ("outputs share a file", [storage.path_of_uri(output.uri) for each in replacements for output in each.outputs]),
    ):
        if len(set(names)) < len(names):
            raise wrong(base, f"two {what}")
    for each in replacements:
        if not each.inputs:
            raise wrong(base, f"replacement {each.id} has no inputs")
        files = [live[key] for key in each.inputs if key in live]
        if len(files) == len(each.inputs):
            _check_replacement(base, each, files)


def _check_replacement(base: Snapshot, each: Replacement, files: Sequence[Input]) -> None:
    if strangers := {file.partition for file in files} - {each.partition}:
        raise wrong(base, f"replacement {each.id} of partition {each.partition!r} has inputs of {sorted(strangers)}")
    kept, outputs = each.kept, sum(output.rows for output in each.outputs)
    if kept and (len(kept) != len(files) or sum(kept) != outputs):
        raise wrong(base, f"replacement {each.id}: {sum(kept)} rows kept of {len(kept)} inputs, {outputs} written")
    rows = [file.rows for file in files]
    if None in rows:
        return
    before = sum(count or 0 for count in rows) - sum(file.deleted_rows for file in files) + each.recounted
    if before != outputs:
        raise wrong(base, f"replacement {each.id} turns {before} live rows into {outputs}")


def check_stored(storage: Storage, base: Snapshot, outputs: Sequence[OutputFile]) -> None:
    """Raise VerificationError unless every new file exists and has its size."""
    if (problem := not_stored(storage, outputs)) is not None:
        raise wrong(base, problem)


def not_stored(storage: Storage, outputs: Sequence[OutputFile]) -> str | None:
    """A new file that does not exist, or has another size; ``None`` if there is none."""

    def problem(output: OutputFile) -> str | None:
        path = storage.path_of_uri(output.uri)
        found = storage.info(path)
        if found is None:
            return f"the new file {path} does not exist"
        return None if found.size == output.size else f"the new file {path} has {found.size} bytes, not {output.size}"

    return next(filter(None, in_parallel(storage, outputs, problem)), None)


def wrong(base: Snapshot, what: str) -> VerificationError:
    return VerificationError(
        what,
        at=base,
        done="new files may have been written, nothing was committed",
        next_step="report this bug, with the plan if there is one; vacuum deletes the files that no commit names",
    )
