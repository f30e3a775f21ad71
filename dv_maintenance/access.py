"""The calls by which :class:`~dv_maintenance.storage.Storage` reaches disks and object stores, each a single step.

Nothing else in ``Storage`` touches bytes. A substitute for :class:`Access`, such as ``testing.faulty_access``, thus
sees every call, and can make it fail before errors are mapped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Access"]

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
        config, client = _split_options(options)
        return store.from_url(root, config=config, client_options=client)

    def open_reader(self, store: Any, key: str) -> Any:
        """A random-access Python file of ranged gets."""
        import obstore

        return obstore.open_reader(store, key)

    def open_writer(self, store: Any, key: str) -> Any:
        """A writable Python file; closing it creates the object."""
        import obstore

        return obstore.open_writer(store, key)

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

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.OSFile(path, "rb")

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
