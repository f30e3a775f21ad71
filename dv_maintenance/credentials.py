"""Keys that a catalog vends for the files of a table, renewed before they end.

Storage options whose names begin with ``catalog.`` say who vends them, and for which table. They are plain text, so
each process that gets the options, such as a worker of Spark, asks for itself. Keys are for reading, until something
is written.

The module of the catalog's kind has the function ``vend``, which takes the options. It returns what a credential
provider of obstore returns: keys or a token, and ``expires_at``, a ``datetime`` with a zone; ``None``: they do not end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from threading import Lock
from typing import Any, Final

from dv_maintenance.errors import DvMaintenanceError

OPERATION: Final = "catalog.operation"
COMMITTER: Final = "catalog.commits"
"""The option that names the catalog which makes the table's versions itself; see ``storage.guards.Fence``."""
_PREFIX: Final = "catalog."
_TYPE: Final = "catalog.type"
_KINDS: Final = "dv_maintenance.catalogs.kinds"
_AGAIN: Final = 60.0  # seconds between two renewals of keys that have time left


class Keys:
    """A credential provider of obstore, which asks before every request once five minutes are left. So keys are kept
    until half of their time has passed.

    failure : why there are none; obstore tells its callers only that there are none.
    """

    failure: DvMaintenanceError | None = None

    def __init__(self, options: Mapping[str, str]) -> None:
        self._vend = import_module(_KINDS).kind_called(options[_TYPE]).vend
        self._options, self._lock = dict(options), Lock()
        self._keys: Mapping[str, Any] | None = None
        self._until = 0.0
        self._renewed = float("-inf")

    @property
    def name(self) -> str:
        """Of the table."""
        return self._options["catalog.table"]

    def __call__(self) -> Mapping[str, Any]:
        with self._lock:
            now = time.time()
            if self._keys is None or self._until <= now:
                try:
                    self._keys, self.failure = self._vend(self._options), None
                except DvMaintenanceError as error:
                    self.failure = error
                    raise
                end = self._keys["expires_at"]
                self._until = float("inf") if end is None else (now + end.timestamp()) / 2
            return self._keys

    def renew(self) -> bool:
        """Forget keys that a store refused. ``False``: that was tried a moment ago."""
        with self._lock:
            if time.monotonic() - self._renewed < _AGAIN:
                return False
            self._keys, self._renewed = None, time.monotonic()
            return True


def vended(options: Mapping[str, str]) -> bool:
    """Whether a catalog vends the keys."""
    return _TYPE in options


def reached(options: Mapping[str, str], uri: str) -> bool:
    """Whether the keys, if a catalog vends them, are for the place of a URI."""
    return not vended(options) or f"{uri}/".startswith(f"{options['catalog.place']}/")


def keys_of(options: Mapping[str, str]) -> Keys | None:
    """What a store asks for keys; ``None``: the options have them, or the environment."""
    return Keys(options) if vended(options) else None


def for_writing(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a store that is written to."""
    return {**options, OPERATION: "READ_WRITE"} if vended(options) else options


def without_catalog(options: Mapping[str, str]) -> dict[str, str]:
    """The options for the store itself."""
    return {name: text for name, text in options.items() if not name.startswith(_PREFIX)}


# As a credential provider of obstore names keys -> as options do, by the scheme of the place.
_AS_OPTIONS: Final = {
    "s3": {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "token": "aws_session_token",
    },
    "gs": {"token": "google_storage_token"},
    "az": {"sas_token": "azure_storage_sas_token", "token": "azure_storage_token"},
}


def as_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options for a library that asks no catalog: with keys to write that hold from now on, and that nothing
    renews.
    """
    keys = keys_of(for_writing(options))
    if keys is None:
        return without_catalog(options)
    scheme = options["catalog.place"].partition("://")[0]
    names = _AS_OPTIONS["az" if scheme.startswith(("abfs", "az")) else scheme]
    found = {names[key]: str(value) for key, value in keys().items() if key in names}
    return {**without_catalog(options), **found}
