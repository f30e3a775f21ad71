"""Commits to a table whose catalog ratifies them: stage, ratify, publish, report (protocol: Catalog-managed tables).

A commit is written to ``_staged_commits``, under a name that no other attempt has. It is the table's next version once
the catalog says so. Then it is copied to its place in the log, so that readers need no more than the files, and the
catalog is told, which then forgets the staged file.

A file that exists is not a published commit: another writer may have died while it copied. So the bytes of each copy
are compared before the catalog is told. What the catalog holds is what was ratified, so a copy that differs is
replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import orjson

from dv_maintenance.errors import RefusedError, StorageDeniedError, StorageError, StorageUnavailableError
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.delta.log.ratified import STAGED, RatifiedStorage, StagedCommit, TooManyUnpublishedError
from dv_maintenance.tables.reports import PublishReport

_log = logging.getLogger(__name__)

_ROUNDS: Final = 3  # of publishing, while other writers commit, too
_LOG: Final = "_delta_log"


def ratify(storage: RatifiedStorage, version: int, body: bytes) -> None:
    """Make ``body`` the commit of a version, and publish it. What fails once it is ratified is logged: the next commit,
    and the verb ``publish``, make up for it.

    Raises
    ------
    FileExistsAlreadyError : another commit has the version.
    RefusedError, StorageDeniedError : it was not ratified.
    StorageUnavailableError : it is not known whether it was ratified.
    """
    timestamp, domains = _described(storage, body)
    name = f"{version:020d}.{uuid4()}.json"
    # Staged on local disk where a vacuum finds what a kill leaves.
    storage.put(STAGED + name, body, staging=f"{_LOG}/{name}#1")
    modified = storage.head(STAGED + name).modified
    commit = StagedCommit(version, name, len(body), timestamp, modified, domains)
    try:
        _have_ratified(storage, commit, body)
    except (FileExistsAlreadyError, RefusedError, StorageDeniedError):
        with suppress(StorageError):  # nobody will ask for it
            storage.delete([STAGED + name])
        raise
    try:
        _publish(storage)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not turn a commit into a failure
        _log.warning("%s: version %d is committed, but not published yet: %s", storage.uri, version, error)


def _have_ratified(storage: RatifiedStorage, commit: StagedCommit, body: bytes) -> None:
    for _ in range(_ROUNDS):
        try:
            storage.answered(storage.catalog.ratify(commit))
        except FileExistsAlreadyError:
            if not _is_ours(storage, commit, body):
                raise
        except TooManyUnpublishedError as full:
            problem = str(full)
            publish(storage)  # those of other writers count as well
            continue
        return
    raise StorageDeniedError(
        f"{storage.catalog.name}: the catalog takes no more commits ({problem})",
        next_step=Remedy("run {}, then run this again", (run("publish", storage.catalog.name),)),
    )


def _is_ours(storage: RatifiedStorage, commit: StagedCommit, body: bytes) -> bool:
    """Whether a commit that was turned down, since its version is taken, took it itself: the answer to an earlier
    request was lost, and this server does not recognise a repeated one.

    Raises StorageUnavailableError if that can't be told.
    """
    latest = storage.latest()
    if (known := storage.known.unpublished.get(commit.version)) is not None:
        return known.name == commit.name
    if latest >= commit.version:
        with suppress(FileNotFoundError):
            return Storage.get(storage, _place(commit.version)) == body
    raise StorageUnavailableError(
        f"{storage.catalog.name}: the catalog says that version {commit.version} is taken, but does not say by what",
        next_step="run it again",
    )


def publish(storage: Storage, *, dry_run: bool = False) -> PublishReport:
    """Copy the commits that the catalog holds to the log, and tell it.

    Raises
    ------
    RefusedError : no catalog ratifies the table's commits; or the name belongs to another table now.
    DamagedTableError : a ratified commit is missing, or has another size.
    StorageError : a copy, or the report, failed. What was copied stays.
    """
    if not isinstance(storage, RatifiedStorage):
        raise RefusedError(
            "the table's commits are files of its log: there is nothing to publish",
            table=storage.uri,
            next_step="name a table whose catalog ratifies its commits",
        )
    storage.latest()
    return _publish(storage, dry_run)


def torn_copies(storage: Storage) -> tuple[int, ...]:
    """Versions whose copy in the log is not what their catalog has ratified, as far as it still holds that. Raises as
    :func:`publish`.
    """
    return _publish(storage, dry_run=True).replaced if isinstance(storage, RatifiedStorage) else ()


def _publish(storage: RatifiedStorage, dry_run: bool = False) -> PublishReport:
    now = storage.known
    done: dict[str, list[int]] = {"copied": [], "replaced": [], "right": []}
    for version in sorted(now.unpublished):
        # As ratified, whatever the log has.
        body = b"" if version in storage.verified else storage.get(_place(version))
        done["right" if version in storage.verified else _copy(storage, version, body, dry_run)].append(version)
        if not dry_run:
            storage.verified.add(version)
    if now.unpublished and not dry_run:
        storage.answered(storage.catalog.report(max(now.unpublished)))
    return PublishReport(now.latest, dry_run, *map(tuple, done.values()))


def _copy(storage: RatifiedStorage, version: int, body: bytes, dry_run: bool) -> str:
    """Have a commit in its place. Returns what that took."""
    try:
        if not dry_run:
            Storage.create(storage, _place(version), body)
            return "copied"
        found = Storage.get(storage, _place(version))
    except FileExistsAlreadyError:
        found = Storage.get(storage, _place(version))
    except FileNotFoundError:
        return "copied"
    if found == body:
        return "right"
    if not dry_run:
        _log.warning("%s: the copy of commit %d was not what was ratified, and is replaced", storage.uri, version)
        storage.put(_place(version), body)
    return "replaced"


def _is_published(storage: RatifiedStorage, version: int) -> bool:
    """Whether the log itself has the commit of a version, as it was ratified. Raises StorageError."""
    if version not in storage.known.unpublished or version in storage.verified:
        return Storage.exists(storage, _place(version))
    try:
        return Storage.get(storage, _place(version)) == storage.get(_place(version))
    except FileNotFoundError:
        return False


def check_published(storage: Storage, version: int) -> None:
    """Raise RefusedError if a catalog has ratified the version, and its commit is not in the log yet."""
    if isinstance(storage, RatifiedStorage) and not _is_published(storage, version):
        raise RefusedError(
            f"the commit of version {version} of {storage.catalog.name} is not published yet, so it gets no checkpoint",
            table=storage.uri,
            version=version,
            next_step=Remedy("run {}, then run this again", (run("publish", storage.catalog.name),)),
        )


def _place(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"


def check_actions(storage: Storage, actions: Sequence[Action]) -> None:
    """Raise RefusedError if the catalog would have to be told more of a commit than we can tell."""
    if isinstance(storage, RatifiedStorage) and any("metaData" in each or "protocol" in each for each in actions):
        raise RefusedError(
            f"the commit would change the schema, the properties or the protocol, and {storage.catalog.name} keeps "
            "a copy of these",
            table=storage.uri,
            next_step="change these with an engine of the catalog, then run this again",
        )


def _described(storage: RatifiedStorage, body: bytes) -> tuple[int, Mapping[str, Any]]:
    """The in-commit timestamp, and the metadata domains that the commit sets."""
    first, *rest = body.splitlines()
    timestamp = orjson.loads(first)["commitInfo"].get("inCommitTimestamp")
    if timestamp is None:
        raise RefusedError(
            f"{storage.catalog.name} ratifies commits, but the table has no in-commit timestamps",
            table=storage.uri,
            next_step="enable delta.enableInCommitTimestamps with an engine of the catalog",
        )
    found = [orjson.loads(line)["domainMetadata"] for line in rest if line.startswith(b'{"domainMetadata"')]
    return timestamp, {each["domain"]: orjson.loads(each["configuration"]) for each in found if not each.get("removed")}
