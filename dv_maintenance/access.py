"""The calls by which :class:`~dv_maintenance.storage.Storage` reaches disks and object stores, each a single step.

Nothing else in ``Storage`` touches bytes. A substitute for :class:`Access`, such as ``testing.faulty_access``, thus
sees every call, and can make it fail before errors are mapped.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from dv_maintenance.credentials import OPERATION, Keys, keys_of, without_catalog
from dv_maintenance.errors import StorageDeniedError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

T = TypeVar("T")

_CLIENT_OPTIONS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "pool_idle_timeout",
    "proxy_url",
    "timeout",
    "user_agent",
}


class Access:
    """Single calls to the local disk and to object stores.

    Paths are those of the operating system. Errors of the system and of obstore pass through unchanged.
    """

    # -- object stores, and the local disk as one ----------------------------------------------------------------------

    def open_store(self, root: str, options: Mapping[str, str]) -> Any:
        """The obstore store of ``root``: ``file://`` for the whole local disk, or a URI down to the bucket."""
        from obstore import store

        if root == "file://":
            return store.LocalStore("/")
        place = _IN_BUCKET.fullmatch(root)
        if place is None:
            return _Client(root, options).store
        return _Folder(_client_of(place["bucket"], options), place["folder"].lstrip("/"))

    def open_reader(self, store: Any, key: str, size: int | None = None) -> Any:
        """A random-access Python file of ranged gets. Without a ``size`` the store is asked for it."""
        import obstore

        return _opened(store, lambda: obstore.open_reader(*_native(store, key), size=size))

    def open_writer(self, store: Any, key: str) -> Any:
        """A writable Python file; closing it creates the object."""
        import obstore

        return _opened(store, lambda: obstore.open_writer(*_native(store, key)))

    # -- local disk ----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def read_range(self, path: str, start: int, length: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(length)

    def scan(self, folder: str) -> os._ScandirIterator[str]:
        return os.scandir(folder)

    def stat(self, path: str) -> os.stat_result:
        return os.stat(path)

    def lstat(self, path: str) -> os.stat_result:
        return os.lstat(path)

    def check_creatable(self, folder: str) -> None:
        """Ask the system whether this process may create files in a folder, and create none. Raises OSError."""
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            mounted = os.statvfs(folder).f_flag & os.ST_RDONLY if hasattr(os, "statvfs") else 0
            number = errno.EROFS if mounted else errno.EACCES
            raise OSError(number, os.strerror(number))

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        try:
            return pa.OSFile(path, "rb")
        except OSError as error:  # Arrow's own error for a folder has no number
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from error
            raise

    def open_output(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.OSFile(path, "wb")

    def write_new(self, path: str, data: bytes) -> None:
        """Not atomic. Raises FileExistsError."""
        with open(path, "xb") as file:
            file.write(data)

    def make_folders(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)


class _Client:
    """The connections to a bucket."""

    def __init__(self, bucket: str, options: Mapping[str, str]) -> None:
        self._bucket, self._options = bucket, options
        self._keys = keys_of(options)
        self.store = self._connected(self._keys)

    def _connected(self, keys: Keys | None) -> Any:
        from obstore import store

        config, client = _split_options(without_catalog(self._options))
        provider = {} if keys is None else {"credential_provider": keys}
        return store.from_url(self._bucket, config=config, client_options=client, **provider)

    def call(self, request: Callable[[], T]) -> T:
        """The answer to a request. If the store refuses the keys of a catalog, it is asked for others, once.

        Raises
        ------
        StorageDeniedError : it refuses these, too. The store's own errors otherwise.
        """
        if self._keys is None:
            return request()
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        for again in (self._keys.renew, lambda: False):
            try:
                return request()
            except Exception as error:
                if self._keys.failure is not None:
                    raise self._keys.failure from None
                if not isinstance(error, PermissionDeniedError | UnauthenticatedError):
                    raise
                if not again():
                    break
                # obstore keeps keys that have time left.
                self.store = self._connected(self._keys)
        raise StorageDeniedError(
            f"the store refuses the keys that the catalog vends for {self._keys.name} ({self._options[OPERATION]})",
            next_step="ask the administrator of the catalog whether its own keys reach the table's place",
        )


class _Folder:
    """An obstore store of what is below a folder of a bucket, as far as ``Storage`` uses one. Keys are relative to the
    folder.
    """

    def __init__(self, client: _Client, folder: str) -> None:
        self.client = client
        self._above = f"{folder}/" if folder else ""

    @property
    def inner(self) -> Any:
        return self.client.store

    def key(self, key: str | None) -> str:
        return self._above + (key or "")

    def get(self, key: str, **options: Any) -> Any:
        return self.client.call(lambda: self.inner.get(self.key(key), **options))

    def head(self, key: str) -> Any:
        return self.client.call(lambda: self.inner.head(self.key(key)))

    def list(self, prefix: str | None = None, *, offset: str | None = None, **options: Any) -> Iterator[Sequence[Any]]:
        after = None if offset is None else self.key(offset)

        def begun() -> tuple[Iterator[Any], Sequence[Any]]:
            batches = iter(self.inner.list(self.key(prefix) or None, offset=after, **options))
            return batches, next(batches, ())

        rest, first = self.client.call(begun)
        yield self._relative(first)
        for batch in rest:
            yield self._relative(batch)

    def list_with_delimiter(self, prefix: str | None) -> Any:
        found = self.client.call(lambda: self.inner.list_with_delimiter(self.key(prefix) or None))
        folders = [each[len(self._above) :] for each in found["common_prefixes"]]
        return {"common_prefixes": folders, "objects": self._relative(found["objects"])}

    def _relative(self, metas: Iterable[Any]) -> Sequence[Any]:
        cut = len(self._above)
        return [{**meta, "path": meta["path"][cut:]} for meta in metas]

    def put(self, key: str, data: bytes, **options: Any) -> Any:
        return self.client.call(lambda: self.inner.put(self.key(key), data, **options))

    def copy(self, source: str, target: str, *, overwrite: bool) -> None:
        self.client.call(lambda: self.inner.copy(self.key(source), self.key(target), overwrite=overwrite))

    def delete(self, keys: str | Sequence[str]) -> None:
        full = self.key(keys) if isinstance(keys, str) else [self.key(key) for key in keys]
        self.client.call(lambda: self.inner.delete(full))


# Where the folder is what the URL says: no escapes, no `..`. Other URLs get a client of their own.
_IN_BUCKET: Final = re.compile(
    r"(?P<bucket>(?:s3|gs|az|abfss)://[\w.@-]+)(?P<folder>(?:/[\w=,+-][\w=,+.-]*)*)", re.ASCII
)
# With a client of its own each table would keep several connections open: a few hundred tables would exceed the usual
# limit of 1,024 open files. Kept as long as a table uses it.
_clients: WeakValueDictionary[object, _Client] = WeakValueDictionary()
_clients_lock: Final = Lock()
_CREDENTIALS: Final = ("AWS_", "AZURE_", "GOOGLE_")


def _opened(store: Any, open: Callable[[], T]) -> T:
    return store.client.call(open) if isinstance(store, _Folder) else open()


def _client_of(bucket: str, options: Mapping[str, str]) -> _Client:
    # What obstore takes from the environment may change, and a forked process can't use its parent's connections.
    environment = ((name, value) for name, value in os.environ.items() if name.startswith(_CREDENTIALS))
    key = (os.getpid(), bucket, frozenset(options.items()), frozenset(environment))
    with _clients_lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = _Client(bucket, dict(options))
        return found


def _native(store: Any, key: str) -> tuple[Any, str]:
    """What functions of obstore itself accept."""
    return (store.inner, store.key(key)) if isinstance(store, _Folder) else (store, key)


def _split_options(options: Mapping[str, str]) -> tuple[Any, Any]:
    """Options in the spelling of Delta tools (any case, client options with ``aws_``) as options of obstore."""
    client: dict[str, str | bool] = {}
    config: dict[str, str] = {}
    for key, value in options.items():
        name = key.lower()
        plain = re.sub(r"^(aws|google|azure)_", "", name)
        if plain in _CLIENT_OPTIONS:
            client[plain] = value.lower() == "true" if value.lower() in {"true", "false"} else value
        else:
            config[name] = value
    return config, client
