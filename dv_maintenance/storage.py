"""One way to reach bytes: local disk, S3, GCS and Azure through obstore.

A *path* here is either relative to the table's root, decoded (``part one/a.parquet``), or an absolute, percent-encoded
URI (``file:///data/t/part%20one/a.parquet``); the two are told apart by ``://``. Names in a Delta log are no paths, but
percent-encoded: they have a type of their own, :class:`RawName`, since a path decoded once more is another file.
Turn them into a path with :meth:`Storage.path_of`, and keep the raw string for identity.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

from dv_maintenance.access import Access
from dv_maintenance.errors import DvMaintenanceError, RefusedError, StorageError, UsageError, redacted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileExistsAlreadyError", "FileInfo", "RawName", "Storage", "absolute_uri", "plain_uri", "staged_for"]

# Characters that Hadoop's Path.toUri leaves alone; everything else in a local path is percent-encoded in our URIs.
_SAFE = "/!$&'()*+,;=:@-._~"
_DELETE_THREADS = 16
_PAGE = 1000  # what object stores list in one request
_NO_NAMES = {"", ".", ".."}
# What obstore stages bytes under on local disk, before they get their name.
_STAGED = re.compile(r"(.+)#[0-9]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One stored object: ``path`` as given to the call, ``size`` in bytes, ``modified`` in epoch milliseconds."""

    path: str
    size: int
    modified: int


class RawName:
    """A name as a log spells it: a URI, absolute or relative to the table, percent-encoded. No string, so that neither
    mypy nor the interpreter lets one pass for a path, or a path for one.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"RawName({self.text!r})"


class FileExistsAlreadyError(StorageError, FileExistsError):
    """A put-if-absent found the name taken."""


def absolute_uri(place: str) -> str:
    """The absolute, percent-encoded URI (no trailing slash) of a local path or URI.

    Raises
    ------
    UsageError : if ``place`` is empty.
    """
    if not place.strip():
        raise UsageError("the table's path is empty", next_step="give a directory or a URI such as s3://bucket/table")
    if place.startswith("file:"):
        # Hadoop writes file:/x, others file:///x: one spelling.
        return "file://" + quote(os.path.normpath(unquote("/" + place[5:].lstrip("/"))), safe=_SAFE)
    if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+://", place):
        scheme, rest = place.split("://", 1)
        return f"{_SCHEMES.get(scheme.lower(), scheme.lower())}://{quote(rest, safe=_SAFE + '%')}".rstrip("/")
    return "file://" + quote(os.path.abspath(os.path.expanduser(place)), safe=_SAFE)


def _refuse_secrets(place: str) -> None:
    """A URI is printed, logged and stored in metadata: what is secret comes by options. Raises UsageError."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*:[^/]*@", place):
        problem = "the table's URI has a password in it"
    elif re.match(r"https?://.*\?", place, re.IGNORECASE):
        problem = "the table's URI has a query in it, such as a token"
    else:
        return
    raise UsageError(problem, table=redacted(place), next_step="leave it out, and give it as a storage option")


def plain_uri(text: str) -> str:
    """The absolute, percent-encoded URI of a place that is spelled as Hadoop's ``Path.toString`` does it: nothing in it
    is encoded, a ``%`` is a ``%``.
    """
    return absolute_uri(text.replace("%", "%25") if "://" in text or text.startswith("file:") else text)


def staged_for(path: str) -> str | None:
    """The path that the bytes at ``path`` were staged for on local disk, by obstore, ours or another writer's; ``None``
    if the name does not say so. Once it is old, such a file is what is left of a writer that was killed.

    >>> staged_for("index/index-1#2"), staged_for("index/index-1")
    ('index/index-1', None)
    """
    match = _STAGED.fullmatch(path)
    return None if match is None else match[1]


_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}


class Storage:
    """Files of one table. Cheap to make, safe to share between threads, never shows its options.

    ``access``: how this one reaches its files; ``default_access`` when it was made. ``outside``: URIs of folders
    elsewhere in which it may write and delete as well, since the table's own options name them.
    """

    default_access: ClassVar[Access] = Access()

    def __init__(self, place: str, options: Mapping[str, str] | None = None) -> None:
        _refuse_secrets(place)
        self.uri = absolute_uri(place)
        self.options = dict(options or {})
        self.is_local = self.uri.startswith("file://")
        self._root = unquote(self.uri[7:]) if self.is_local else self.uri
        self.access = self.default_access
        self._stores: dict[str, Any] = {}
        self.outside: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Storage, (self.uri, self.options))

    # -- names -------------------------------------------------------------------------------------------------

    def path_of(self, name: RawName) -> str:
        """The path of a name in a table log: percent-decoded if relative, one spelling of the URI if absolute.

        A URI below this table's root becomes relative, so that one file has one path whichever way a log names it.
        """
        raw = name.text
        if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+:/", raw):
            uri = absolute_uri(raw)
        elif raw.startswith("/"):
            uri = "file://" + quote(unquote(raw), safe=_SAFE)
        else:
            return unquote(raw)
        return self._relative(uri)

    def path_of_uri(self, uri: str) -> str:
        """The path of an absolute URI: relative if it is below this table's root.

        Raises
        ------
        ValueError : it is none.
        """
        if "://" not in uri:
            raise ValueError(f"{uri!r} is no absolute URI")
        return self._relative(absolute_uri(uri))

    def _relative(self, uri: str) -> str:
        prefix = self.uri + "/"
        return unquote(uri[len(prefix) :]) if uri.startswith(prefix) else uri

    def uri_of(self, path: str) -> str:
        """The absolute, percent-encoded URI of a path."""
        return path if "://" in path else f"{self.uri}/{quote(path, safe=_SAFE)}"

    def local(self, path: str) -> str:
        """The path on local disk. Only for ``is_local`` places."""
        return unquote(path[7:]) if path.startswith("file://") else os.path.join(self._root, path)

    # -- reading -----------------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        """All bytes. Raises FileNotFoundError, StorageError."""
        store, key = self._at(path)
        with _errors(path):
            if self._local_path(path):
                # A log is a thousand small files: the store's own thread hops would cost more than reading them.
                return self.access.read(self.local(path))
            return bytes(store.get(key).bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``; fewer where the file ends before."""
        store, key = self._at(path)
        with _errors(path):
            if self._local_path(path):
                return self.access.read_range(self.local(path), start, length)
            try:
                return bytes(store.get_range(key, start=start, length=length))
            except FileNotFoundError:
                raise
            except Exception:
                # Object stores answer a range behind the end with an error of their own; a file has no bytes there.
                if start >= store.head(key)["size"]:
                    return b""
                raise

    def head(self, path: str) -> FileInfo:
        """Size and modification time. Raises FileNotFoundError, StorageError."""
        store, key = self._at(path)
        with _errors(path):
            meta = store.head(key)
        return FileInfo(path, meta["size"], _millis(meta["last_modified"]))

    def exists(self, path: str) -> bool:
        try:
            self.head(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str = "", *, after: str | None = None, staged: bool = False) -> list[FileInfo]:
        """Every file below ``prefix`` (a folder), by name; with ``after``, only those that sort behind that path; with
        ``staged`` also what is staged on local disk, see :func:`staged_for`.

        On local disk a link to a folder is listed as a file of -1 bytes, and not followed. A missing folder is empty.
        Not for whole tables: see :meth:`walk`.
        """
        if self._local_path(prefix):
            with _errors(prefix):
                found = [info for info in self._list_local(prefix, staged) if after is None or info.path > after]
            return sorted(found, key=lambda info: info.path)
        store, key = self._at(prefix)
        cut = len(key) - len(prefix)
        with _errors(prefix):
            found = [
                FileInfo(meta["path"][cut:], meta["size"], _millis(meta["last_modified"]))
                for batch in store.list(key or None, offset=self._at(after)[1] if after else None)
                for meta in batch
            ]
        return sorted(found, key=lambda info: info.path)

    def _list_local(self, prefix: str, staged: bool) -> Iterator[FileInfo]:
        todo = [(self.local(prefix), prefix)]
        while todo:
            folder, path = todo.pop()
            try:
                entries = self.access.scan(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            with entries:
                for entry in entries:
                    name = f"{path}/{entry.name}" if path else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, name))
                    elif staged or staged_for(entry.name) is None:
                        try:
                            found = entry.stat()
                        except FileNotFoundError:
                            continue  # removed while we looked, or a link to nowhere
                        size = -1 if stat.S_ISDIR(found.st_mode) else found.st_size
                        yield FileInfo(name, size, found.st_mtime_ns // 1_000_000)

    def first_names(self, folder: str) -> tuple[tuple[str, ...], bool]:
        """Names of the files right in a folder, and whether these are all of them.

        On local disk they are, in no order, and no file is looked at. In an object store they are those of a single
        request: a thousand or so, which come first by name where the store lists by name. A missing folder is empty.
        """
        if self._local_path(folder):
            try:
                with _errors(folder), self.access.scan(self.local(folder)) as entries:
                    return tuple(entry.name for entry in entries if not entry.is_dir()), True
            except FileNotFoundError:
                return (), True
        store, key = self._at(folder)
        with _errors(folder):
            metas: tuple[Any, ...] = tuple(next(iter(store.list(f"{key}/", chunk_size=_PAGE)), ()))
        names = (meta["path"][len(key) + 1 :] for meta in metas)
        return tuple(name for name in names if "/" not in name), len(metas) < _PAGE

    def folders(self, path: str = "") -> tuple[str, ...]:
        """Names of the folders right below a folder, sorted; none where it is missing. Links are not followed."""
        if self._local_path(path):
            try:
                with _errors(path), self.access.scan(self.local(path)) as entries:
                    return tuple(sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))
            except FileNotFoundError:
                return ()
        store, key = self._at(path)
        with _errors(path):
            found = store.list_with_delimiter(f"{key}/" if key else None)["common_prefixes"]
        return tuple(sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in found))

    def walk(self, *, skip: Any = None) -> Iterator[FileInfo]:
        """Every file of the table, in no order. ``skip(name, is_dir)`` leaves out a file or a whole folder by its path.

        On local disk this is scandir, with the sizes left to whoever needs them: ``size`` and ``modified`` are -1
        there (a stat of each file would triple the time of a walk; see :meth:`head`).
        """
        if self.is_local:
            yield from self._walk_local(skip)
            return
        store, _ = self._at("")
        with _errors(""):
            for batch in store.list():
                for meta in batch:
                    path = meta["path"]
                    parts = path.split("/")
                    folders = ["/".join(parts[:n]) for n in range(1, len(parts))]
                    if skip and (any(skip(folder, True) for folder in folders) or skip(path, False)):
                        continue
                    yield FileInfo(path, meta["size"], _millis(meta["last_modified"]))

    def _walk_local(self, skip: Any) -> Iterator[FileInfo]:
        todo = [""]
        while todo:
            folder = todo.pop()
            for entry in self._entries(folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                is_dir = entry.is_dir(follow_symlinks=False)
                if skip and skip(path, is_dir):
                    continue
                if is_dir:
                    todo.append(path)
                else:
                    yield FileInfo(path, -1, -1)

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with _errors(folder), self.access.scan(os.path.join(self._root, folder)) as entries:
                yield from entries
        except FileNotFoundError:
            pass  # removed while we walked

    def open_input(self, path: str) -> pa.NativeFile:
        """A random-access file for Arrow. Local files are opened by Arrow itself, others by ranged gets."""
        import pyarrow as pa

        with _errors(path):
            if self._local_path(path):
                return self.access.open_input(self.local(path))

            store, key = self._at(path)
            return pa.PythonFile(_Handle(path, self.access.open_reader(store, key)), mode="r")

    # -- writing -----------------------------------------------------------------------------------------------
    #
    # Nothing is written or deleted outside of the table's root, nor, on local disk, through a link to a folder below
    # it. The root itself may be reached through links. Who swaps a folder for a link between our look and the write
    # is not kept from it.

    def check_target(self, path: str) -> None:
        """Refuse to write or delete at ``path``.

        Raises
        ------
        RefusedError : it is outside of the table, or beyond a link.
        """
        root, rest = self._below(path)
        if not _NO_NAMES.isdisjoint(rest.split("/")):
            raise self._refused(f"{path!r} is no plain path below the table")
        with _errors(path):
            link = _link(root, rest.rpartition("/")[0]) if root else None
        if link is not None:
            raise self._refused(f"{path} lies beyond {link}, which is a link")

    def beyond_link(self, path: str) -> bool:
        """Whether, on local disk, one of the folders between the table's root and ``path`` is a link."""
        if not self.is_local or "://" in path:
            return False
        return _link(self._root, path.rpartition("/")[0]) is not None

    def _below(self, path: str) -> tuple[str, str]:
        """The local folder ("" if not on local disk) that ``path`` has to be below of, and the rest of the path."""
        if "://" not in path:
            return self._root if self.is_local else "", path
        for place in (self.uri, *self.outside):
            root = absolute_uri(place)
            if path.startswith(f"{root}/"):
                return unquote(root[7:]) if root.startswith("file://") else "", unquote(path[len(root) + 1 :])
        raise self._refused(f"{path} lies outside of the table")

    def _refused(self, problem: str) -> RefusedError:
        return RefusedError(
            f"nothing is written or deleted there: {problem}",
            table=self.uri,
            next_step="put the folder itself in the place of the link, or take the path out of the table",
        )

    def put(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        """Write all bytes, replacing what is there, as one atomic step. ``staging``: see :meth:`create`.

        Raises
        ------
        RefusedError : see :meth:`check_target`; by all that write or delete.
        """
        self.check_target(path)
        store, key = self._at(path)
        with _errors(path):
            if staging is None or not self._local_path(path):
                store.put(key, data)
                return
            self.check_target(staging)
            target, staged = self.local(path), self.local(staging)
            self.access.make_folders(os.path.dirname(target))
            try:
                self.access.write_new(staged, data)
                self.access.rename(staged, target)
            except OSError as error:
                with suppress(OSError):
                    self.access.unlink(staged)
                raise StorageError(
                    f"{path} could not be written: {error.strerror}",
                    next_step="check the disk's space and the permissions, then run again",
                ) from error

    def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        """Put-if-absent: exactly one of several racing writers wins.

        ``staging``: where on local disk the bytes are until they are all there; by default beside ``path``, under its
        name and ``#1``. Of no use elsewhere.

        Raises
        ------
        FileExistsAlreadyError : somebody else has that name.
        """
        self.check_target(path)
        if not self.is_local:
            self.prove_put_if_absent(path.rpartition("/")[0])
        store, key = self._at(path)
        with _errors(path):
            if staging is None or not self._local_path(path):
                store.put(key, data, mode="create")
                return
            self.check_target(staging)
            target, staged = self.local(path), self.local(staging)
            try:
                self.access.write_new(staged, data)
                self.access.link(staged, target)
            except FileExistsError as error:
                raise FileExistsAlreadyError(f"{path} exists already") from error
            finally:
                # Half of it is there when the disk is full. What can't be removed is no reason to doubt the outcome.
                with suppress(OSError):
                    self.access.unlink(staged)

    def prove_put_if_absent(self, folder: str, *, anyhow: bool = False) -> None:
        """Once in a process, before the first commit to a store that nobody vouches for (a custom endpoint, WebDAV):
        put an object twice below ``folder``, which must fail, and delete it. ``anyhow``: whatever the store, and again.

        Its name begins with a dot and ends like a temporary file: no reader of a table looks at such.

        Raises
        ------
        RefusedError : the store takes the second put.
        StorageError : it does not answer.
        """
        endpoint = _custom_endpoint(self.uri, self.options)
        if not anyhow and (self.is_local or endpoint is None):
            return
        parts = urlsplit(self.uri)
        which = (endpoint or "", parts.scheme, parts.netloc)
        if which in _PROVEN and not anyhow:
            return
        path = f"{folder}/.dvm-probe-{uuid4()}.tmp".lstrip("/")
        store, key = self._at(path)
        with _errors(path):
            try:
                for data in (b"first", b"second"):
                    store.put(key, data, mode="create")
            except Exception as error:
                # An answer may have got lost, and the client have repeated the first put: that proves it as well.
                if type(error).__name__ != "AlreadyExistsError":
                    raise
                _PROVEN.add(which)
                return
            finally:
                with suppress(Exception):  # vacuum finds what stays
                    store.delete(key)
        raise RefusedError(
            f"the store at {endpoint or f'{parts.scheme}://{parts.netloc}'} ignores put-if-absent (If-None-Match): of "
            "two writers that commit the same version, one would be lost",
            table=self.uri,
            next_step="upgrade the store to a release with conditional writes, and keep proxies from stripping the "
            "header; until then write with one process only, and not with this one",
        )

    def open_output(self, path: str) -> pa.NativeFile:
        """A sink for Arrow; what is written shows up at the latest on close."""
        import pyarrow as pa

        self.check_target(path)
        with _errors(path):
            if self._local_path(path):
                target = self.local(path)
                if os.path.islink(target):
                    raise self._refused(f"{path} is a link")
                self.access.make_folders(os.path.dirname(target))
                return self.access.open_output(target)
            store, key = self._at(path)
            return pa.PythonFile(_Handle(path, self.access.open_writer(store, key)), mode="w")

    def delete(self, paths: Iterable[str]) -> int:
        """Delete files in parallel; one that is gone already counts as deleted. Returns how many were there. A link is
        deleted itself, not what it points to. Nothing is deleted where one of the paths is refused.
        """
        paths = list(paths)
        folders: set[str] = set()
        for path in paths:
            folder, slash, name = path.rpartition("/")
            # Once for each folder: there may be a million files.
            if folder + slash not in folders or name in _NO_NAMES:
                self.check_target(path)
                folders.add(folder + slash)
        if self.is_local:
            return sum(self._unlink(path) for path in paths)
        with ThreadPoolExecutor(_DELETE_THREADS) as pool:
            return sum(pool.map(self._delete_one, paths))

    def move(self, source: str, target: str) -> bool:
        """Move a file of the table to a name that is free; ``False`` if it is gone. A rename on local disk, elsewhere a
        copy and a delete: one that broke off may be run again.

        Raises
        ------
        RefusedError : see :meth:`check_target`. FileExistsAlreadyError : the name is taken by another file.
        """
        self.check_target(source)
        self.check_target(target)
        try:
            with _errors(source):
                if not self._local_path(source):
                    return self._copy_and_delete(source, target)
                place = self.local(target)
                self.access.make_folders(os.path.dirname(place))
                if os.path.lexists(place):
                    raise FileExistsAlreadyError(f"{target} exists already")
                self.access.rename(self.local(source), place)
        except FileNotFoundError:
            return False
        return True

    def _copy_and_delete(self, source: str, target: str) -> bool:
        store, key = self._at(source)
        wanted = self._at(target)[1]
        try:
            store.copy(key, wanted, overwrite=False)
        except Exception as error:
            if type(error).__name__ != "AlreadyExistsError" or store.head(key)["size"] != store.head(wanted)["size"]:
                raise
        store.delete(key)
        return True

    def _unlink(self, path: str) -> int:
        with _errors(path):
            try:
                self.access.unlink(self.local(path))
            except FileNotFoundError:
                return 0
        return 1

    def _delete_one(self, path: str) -> int:
        store, key = self._at(path)
        with _errors(path):
            try:
                store.delete(key)
            except FileNotFoundError:
                return 0
        return 1

    # -- plumbing ----------------------------------------------------------------------------------------------

    def _local_path(self, path: str) -> bool:
        return path.startswith("file://") if "://" in path else self.is_local

    def _at(self, path: str) -> tuple[Any, str]:
        """The obstore store that holds ``path``, and the key in it."""
        if self._local_path(path):
            # One store for the whole disk: it works before the table's folder exists, and for files outside of it.
            return self._store("file://"), self.local(path).lstrip("/")
        if "://" not in path:
            return self._store(self.uri), path
        parts = urlsplit(path)
        return self._store(f"{parts.scheme}://{parts.netloc}"), unquote(parts.path).lstrip("/")

    def _store(self, root: str) -> Any:
        if root not in self._stores:
            try:
                self._stores[root] = self.access.open_store(root, self.options)
            except BaseException as error:  # pyo3's PanicException (an unknown option) is no Exception
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                raise UsageError(
                    f"cannot open storage {root}: {type(error).__name__}",
                    next_step="check the URI's scheme and the storage options",
                ) from _Cause(error)
        return self._stores[root]


class _Handle:
    """An obstore reader or writer as the Python file that Arrow expects (``closed`` is a property there). What it fails
    with in the middle is a StorageError, as when it is opened.
    """

    def __init__(self, path: str, inner: Any) -> None:
        self._path, self._inner = path, inner
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, size: int = -1) -> Any:
        with _errors(self._path):
            return self._inner.read(size)

    def write(self, data: Any) -> Any:
        with _errors(self._path):
            return self._inner.write(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _errors(self._path):
                self._inner.close()


def _link(root: str, folder: str) -> str | None:
    """The first link on the way from ``root`` (not looked at) down to ``folder``, itself included; ``None``: none."""
    at = root
    for part in folder.split("/") if folder else ():
        at = f"{at}/{part}"
        try:
            mode = os.lstat(at).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(mode):
            return at
    return None


# Endpoint, scheme and bucket of the stores that have shown that they know put-if-absent.
_PROVEN: set[tuple[str, str, str]] = set()
_ENDPOINTS = re.compile(r"((aws|azure|azure_storage|google)_)?(endpoint|endpoint_url|endpoint_url_s3|base_url)")
_OF_CLOUDS = re.compile(
    r"https://([\w.-]+\.)?(amazonaws\.com(\.cn)?|googleapis\.com|core\.windows\.net|fabric\.microsoft\.com)(:443)?(/.*)?"
)


def _custom_endpoint(uri: str, options: Mapping[str, str]) -> str | None:
    """Where a store is that is none of the clouds' own: those are known to have conditional puts. ``None``: it is."""
    if uri.startswith(("http://", "https://")):
        found = ["://".join(urlsplit(uri)[:2])]
    else:
        found = [value for name, value in options.items() if _ENDPOINTS.fullmatch(name.lower())]
        if uri.startswith("s3://"):  # obstore takes these from the environment
            names = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
            found += [os.environ[name] for name in names if os.environ.get(name)]
    return next((redacted(each) for each in found if not _OF_CLOUDS.fullmatch(each)), None)


class _Cause(Exception):  # noqa: N818 - it stands for an error of somebody else's
    """What a storage client said, redacted: causes are printed and stored with the errors that they led to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(redacted(f"{type(error).__name__}: {error}"))


def _millis(when: Any) -> int:
    return int(when.timestamp() * 1000)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Storage failures as our errors; FileNotFoundError stays what it is."""
    try:
        yield
    except (FileNotFoundError, DvMaintenanceError):
        raise
    except Exception as error:
        name = type(error).__name__
        if name == "AlreadyExistsError":
            raise FileExistsAlreadyError(f"{path} exists already") from error
        if name in {"NotFoundError", "NotADirectoryError"}:
            raise FileNotFoundError(path) from error
        # The text of a storage client's error may quote signed URLs: name the kind; the cause says the rest.
        raise StorageError(
            f"storage failed on {path or 'the table'}: {name}",
            next_step="check the network, the permissions and the storage options, then run again",
        ) from _Cause(error)
