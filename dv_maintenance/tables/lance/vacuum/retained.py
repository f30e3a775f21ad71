"""The references that keep files of a Lance table alive: its versions and tags, branches and clones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, UnsupportedFeatureError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.layout import DATA
from dv_maintenance.tables.lance.log.refs import branches, tags
from dv_maintenance.tables.lance.log.versions import VERSIONS, VersionFile, detached_names, versions_among
from dv_maintenance.tables.lance.vacuum import expired

__all__ = ["TREE", "Place", "References", "read_references", "unreadable"]

TREE: Final = "tree"


@dataclass(frozen=True, slots=True)
class Place:
    """Another table that may need files of this table.

    storage : its root.
    reason : why the files that it names are kept.
    versions : paths of its manifests.
    """

    storage: Storage
    reason: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class References:
    """The references to files of a table, at the time of one listing.

    versions : manifests of the history, oldest first.
    detached : paths of manifests of detached versions.
    pinned : version -> why it must be kept.
    places : branches and clones.
    """

    versions: tuple[VersionFile, ...]
    detached: tuple[str, ...]
    pinned: Mapping[int, str]
    places: tuple[Place, ...]


def read_references(storage: Storage, root: Storage, branch: str | None, clones: Sequence[Storage]) -> References:
    """List the references to files of the table at ``storage``.

    root : the root of the table if ``storage`` is its ``branch``, otherwise ``storage`` itself.

    Raises
    ------
    RefusedError : a branch or a clone cannot be read.
    DamagedTableError, UnsupportedFeatureError : a tag or a branch cannot be parsed.
    """
    names = _names(storage)
    pinned = {tag.version: expired.TAGGED for tag in tags(root).values() if tag.branch == branch}
    known = branches(root)
    folders = {each.path for each in known.values()} | set(_branch_folders(root))
    pinned |= {each.parent_version: expired.BRANCHED for each in known.values() if each.parent == branch}
    family = [root, *(Storage(root.uri_of(path), root.options) for path in sorted(folders))]
    places = [_place(each, expired.BRANCHED) for each in family if each.uri != storage.uri]
    for clone in clones:
        parts = [clone, *(Storage(clone.uri_of(path), clone.options) for path in sorted(_branch_folders(clone)))]
        places += [_place(part, expired.CLONED) for part in parts]
    return References(
        versions=tuple(versions_among(storage, names)),
        detached=tuple(f"{VERSIONS}/{name}" for name in detached_names(names)),
        pinned=pinned,
        places=tuple(places),
    )


def _names(storage: Storage) -> list[str]:
    names, complete = storage.first_names(VERSIONS)
    return list(names) if complete else [info.path[len(VERSIONS) + 1 :] for info in storage.list(VERSIONS)]


def _place(storage: Storage, reason: str) -> Place:
    """Raises RefusedError, DamagedTableError."""
    try:
        names = _names(storage)
        paths = [file.path for file in versions_among(storage, names)]
    except DvMaintenanceError as error:
        raise unreadable(Place(storage, reason, ()), error) from error
    return Place(storage, reason, (*paths, *(f"{VERSIONS}/{name}" for name in detached_names(names))))


def unreadable(place: Place, error: DvMaintenanceError) -> DvMaintenanceError:
    """The error to raise if a place cannot be read. Damage and unknown features are raised as they are."""
    if isinstance(error, DamagedTableError | UnsupportedFeatureError):
        return error
    what = "protected clone" if place.reason == expired.CLONED else "branch"
    return RefusedError(
        f"the {what} {place.storage.uri} cannot be read, so the files that it needs are unknown: {error.message}",
        table=place.storage.uri,
        next_step=f"check its path and the permissions; if the {what} was deleted, stop naming it",
    )


def _branch_folders(storage: Storage) -> Iterator[str]:
    """Branches by their folders: a branch that is being created has no ref file yet."""
    todo = [TREE]
    while todo:
        folder = todo.pop()
        below = storage.folders(folder)
        is_branch = VERSIONS in below
        if is_branch:
            yield folder
        # Next to the versions of a branch, `data` holds its data files. Its folders are blobs, not branches.
        todo += (f"{folder}/{name}" for name in below if not name.startswith("_") and not (is_branch and name == DATA))
