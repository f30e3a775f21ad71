"""Tags and branches: names that keep versions alive.

Format: branch and tag specification of Lance. Both are JSON files under ``_refs`` of the table's root, named by what
they name, percent-encoded. A branch is a folder ``tree/NAME`` with manifests and deletions of its own; its tags and the
refs of its branches are in the root all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.storage import Storage

__all__ = ["Branch", "Tag", "branches", "root", "tags"]

_TAGS: Final = "_refs/tags"
_BRANCHES: Final = "_refs/branches"
_TREE: Final = "tree"


@dataclass(frozen=True, slots=True)
class Tag:
    """``branch``: ``None`` is the main one."""

    name: str
    version: int
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """Came off ``parent`` (``None``: the main branch) at its version ``parent_version``. ``path``: of its folder,
    relative to the table's root.
    """

    name: str
    parent: str | None
    parent_version: int

    @property
    def path(self) -> str:
        return f"{_TREE}/{self.name}"


def root(storage: Storage, branch: str | None) -> Storage:
    """The root of the table of which ``storage`` is a ``branch``."""
    if branch is None:
        return storage
    place = storage.uri.removesuffix("/" + storage.uri_of(f"{_TREE}/{branch}")[len(storage.uri) + 1 :])
    return Storage(place, storage.options)


def tags(storage: Storage) -> dict[str, Tag]:
    """Tags by name, those of branches too; ``storage`` is the table's root. One request, and one for each tag.

    Raises
    ------
    DamagedTableError : names the file of a tag that cannot be read: it may well keep a version alive.
    """
    found = {}
    for name, path in _names(storage, _TAGS):
        body = _read(storage, path)
        branch = body.get("branch")
        if type(body.get("version")) is not int or not (branch is None or isinstance(branch, str)):
            raise _damaged(storage, path, "it does not say which version it is of")
        found[name] = Tag(name, body["version"], branch)
    return found


def branches(storage: Storage) -> dict[str, Branch]:
    """Branches by name, without the main one; ``storage`` is the table's root. Costs and raises as :func:`tags`."""
    found = {}
    for name, path in _names(storage, _BRANCHES):
        body = _read(storage, path)
        parent = body.get("parentBranch")
        if type(body.get("parentVersion")) is not int or not (parent is None or isinstance(parent, str)):
            raise _damaged(storage, path, "it does not say which version it came off")
        found[name] = Branch(name, parent, body["parentVersion"])
    return found


def _names(storage: Storage, folder: str) -> list[tuple[str, str]]:
    """Names and paths, by name."""
    names, complete = storage.first_names(folder)
    if not complete:
        names = tuple(info.path[len(folder) + 1 :] for info in storage.list(folder))
    return sorted((unquote(name[:-5]), f"{folder}/{name}") for name in names if name.endswith(".json"))


def _read(storage: Storage, path: str) -> dict[str, Any]:
    try:
        body = orjson.loads(storage.get(path))
    except orjson.JSONDecodeError as error:
        raise _damaged(storage, path, f"not JSON ({error.msg})") from None
    except FileNotFoundError:
        raise _damaged(storage, path, "it vanished while it was read") from None
    if not isinstance(body, dict):
        raise _damaged(storage, path, "not a JSON object")
    return body


def _damaged(storage: Storage, path: str, reason: str) -> DamagedTableError:
    return DamagedTableError(
        f"{path}: {reason}",
        table=storage.uri,
        next_step="run again; if it stays so, make the tag or the branch again with Lance",
    )
