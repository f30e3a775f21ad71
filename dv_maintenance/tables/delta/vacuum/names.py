"""The files that names in a Delta log mean, as paths relative to the table.

Names are URIs, to be decoded once. Some writers forget to encode them, so the literal name counts as well: too much
protection leaks a file, too little loses it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import z85
from dv_maintenance.dv.descriptor import DvDescriptor
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError
from dv_maintenance.files.arrays import combined, strings
from dv_maintenance.storage import NOT_PLAIN, RawName

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.log.actions import Action

_UUID_TEXT = 20  # Z85 characters


class Named(NamedTuple):
    """The files that names may mean.

    paths : files in the table.
    elsewhere : base names of files that the log places outside the table. Each may or may not be a file of the table (a
        symbolic link, another mount or endpoint of the same storage).
    """

    paths: set[str]
    elsewhere: set[str]


def path_of(storage: Storage, name: RawName) -> str:
    """The path that a name in a log means, with dots resolved: relative to the table, or an absolute URI."""
    path = storage.path_of(name)
    return path if "://" in path else posixpath.normpath(path)


def paths_of(storage: Storage, *columns: pa.Array | pa.ChunkedArray, exact: Iterable[str] = ()) -> Named:
    """The files that columns of names may mean. ``exact``: paths or URIs of further files."""
    paths, elsewhere = set[str](), set[str]()
    others = [(path, path) for path in exact]
    for raw in columns:
        plain = pc.invert(pc.match_substring_regex(raw, NOT_PLAIN))
        paths.update(raw.filter(plain).to_pylist())
        others += [(path_of(storage, RawName(name)), name) for name in raw.filter(pc.invert(plain)).to_pylist()]
    for path, name in others:
        if "://" in path:
            elsewhere.add(unquote(path.rpartition("/")[2]))
        else:
            paths.update((path,) if "://" in name else (path, name))
    return Named(paths, elsewhere)


def named_in(storage: Storage, files: pa.Table) -> Named:
    """The files in the column ``path``, and those of all DVs in the column ``dv`` (protocol: Deletion Vector Descriptor
    Schema). Inline DVs have none.

    Raises
    ------
    DamagedTableError : the file of a DV can't be determined; deleting would be guessing.
    """
    dvs = combined(files["dv"]).drop_null()
    kinds, names = pc.struct_field(dvs, "storage_type"), pc.struct_field(dvs, "path_or_inline")
    unknown = set(pc.unique(kinds).to_pylist()) - {"u", "p", "i"}
    if unknown or names.null_count:
        raise DamagedTableError(
            f"a deletion vector has the unknown storage type {min(map(str, unknown))!r}"
            if unknown
            else "a deletion vector has no pathOrInlineDv",
            table=storage.uri,
        )
    # DVs share files, so each file name is decoded once.
    packed = pc.unique(names.filter(pc.equal(kinds, strings(["u"])[0]))).to_pylist()
    absolute = pc.unique(names.filter(pc.equal(kinds, strings(["p"])[0])))
    return paths_of(storage, files["path"], absolute, exact=_dv_files(packed))


def named_by(storage: Storage, actions: Iterable[Action]) -> Named:
    """The files that add, remove and cdc actions may mean. Raises DamagedDeletionVectorError."""
    kinds = ("add", "remove", "cdc")
    bodies = [body for action in actions for kind in kinds if isinstance(body := action.get(kind), dict)]
    names = [body["path"] for body in bodies if isinstance(body.get("path"), str)]
    dvs = (dv_path(storage, body) for body in bodies)
    return paths_of(storage, strings(names), exact=filter(None, dvs))


def dv_path(storage: Storage, body: Mapping[str, Any]) -> str | None:
    """The file of an action's DV, ``None`` if it has none. Raises DamagedDeletionVectorError."""
    if (dv := body.get("deletionVector")) is None:
        return None
    descriptor = DvDescriptor.from_json(dv)
    if descriptor.storage_type == "u":
        return posixpath.normpath(descriptor.relative_path())
    return path_of(storage, RawName(descriptor.path_or_inline)) if descriptor.storage_type == "p" else None


def _dv_files(names: list[str]) -> set[str]:
    """Files of ``u`` descriptors. Raises DamagedDeletionVectorError."""
    bare = [name for name in names if len(name) == _UUID_TEXT]
    others = [name for name in names if len(name) != _UUID_TEXT]
    try:
        # One long text is decoded an order of magnitude faster than many short ones.
        uuids = z85.decode("".join(bare))
    except DamagedDeletionVectorError:
        uuids, others = b"", names  # decode one by one, so that the error names the descriptor
    digits = uuids.hex()
    files = {_dv_file(digits[at : at + 32]) for at in range(0, len(digits), 32)}
    return files | {posixpath.normpath(DvDescriptor("u", name, None, 0, 0).relative_path()) for name in others}


def _dv_file(digits: str) -> str:
    """``dv_file_path`` of a UUID's digits, without a UUID object."""
    return f"deletion_vector_{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}.bin"
