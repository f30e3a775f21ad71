"""Tags and branches: names that keep versions alive.

Format: branch and tag specification of Lance. Both are JSON files under ``_refs`` of the table's root; the file name is
the percent-encoded name of the tag or branch. A branch is a folder ``tree/NAME`` with its own manifests and deletion
files; its tags and its child branches are still recorded in the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.storage import Storage

_TAGS: Final = "_refs/tags"
_BRANCHES: Final = "_refs/branches"
_TREE: Final = "tree"


@dataclass(frozen=True, slots=True)
class Tag:
    """A named version.

    branch : the branch of the version; ``None`` is the main branch.
    """

    name: str
    version: int
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch.

    parent : the branch that it was created from; ``None`` is the main branch.
    parent_version : the version of ``parent`` that it was created from.
    path : of its folder, relative to the table's root.
    """

    name: str
    parent: str | None
    parent_version: int

    @property
    def path(self) -> str:
        return f"{_TREE}/{self.name}"


def root(storage: Storage, branch: str | None) -> Storage:
    """The root of the table whose ``branch`` is at ``storage``."""
    if branch is None:
        return storage
    place = storage.uri.removesuffix("/" + storage.uri_of(f"{_TREE}/{branch}")[len(storage.uri) + 1 :])
    return Storage(place, storage.options)


def tags(storage: Storage) -> dict[str, Tag]:
    """Tags by name, including those of branches; ``storage`` is the table's root. One request, and one for each tag.

    Raises
    ------
    DamagedTableError : names the file of a tag that cannot be read, since that tag may keep a version alive.
    """
    found = {}
    for name, path in _names(storage, _TAGS):
        body = _read(storage, path)
        branch = body.get("branch")
        if type(body.get("version")) is not int or not (branch is None or isinstance(branch, str)):
            raise _damaged(storage, path, "the version is missing or not a number")
        found[name] = Tag(name, body["version"], branch)
    return found


def branches(storage: Storage) -> dict[str, Branch]:
    """Branches by name, without the main branch. ``storage``: the table's root. Costs and errors: see :func:`tags`."""
    found = {}
    for name, path in _names(storage, _BRANCHES):
        body = _read(storage, path)
        parent = body.get("parentBranch")
        if type(body.get("parentVersion")) is not int or not (parent is None or isinstance(parent, str)):
            raise _damaged(storage, path, "the parent version is missing or not a number")
        found[name] = Branch(name, parent, body["parentVersion"])
    return found


def _names(storage: Storage, folder: str) -> list[tuple[str, str]]:
    """Names and paths, by name."""
    names = storage.names(folder)
    return sorted((unquote(name[:-5]), f"{folder}/{name}") for name in names if name.endswith(".json"))


def _read(storage: Storage, path: str) -> dict[str, Any]:
    try:
        body = orjson.loads(storage.get(path))
    except orjson.JSONDecodeError as error:
        raise _damaged(storage, path, f"not JSON ({error.msg})") from None
    except FileNotFoundError:
        raise _damaged(storage, path, "it was deleted while it was read") from None
    if not isinstance(body, dict):
        raise _damaged(storage, path, "not a JSON object")
    return body


def _damaged(storage: Storage, path: str, reason: str) -> DamagedTableError:
    return DamagedTableError(
        f"{path}: {reason}",
        table=storage.uri,
        next_step="run again; if the error persists, recreate the tag or the branch with Lance",
    )
