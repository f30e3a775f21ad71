"""Guards of a table's writes: nothing is written outside the table, nor to a store that could lose a commit."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from dv_maintenance.errors import RefusedError, redacted
from dv_maintenance.storage.failures import storage_errors
from dv_maintenance.storage.paths import absolute_uri

if TYPE_CHECKING:
    from dv_maintenance.access import Access

NO_NAMES: Final = frozenset({"", ".", ".."})


# -- places ------------------------------------------------------------------------------------------------------------


class Fence:
    """Nothing is written or deleted outside the table's root, nor, on local disk, through a link to a folder below it.
    The root itself may be reached through links. A folder that is replaced by a link between the check and the write is
    not detected.

    outside : URIs of external folders that belong to the table, since its options name them.
    committer : what makes the table's versions, such as a catalog: nothing is written here at all. ``None``: its
        writers do.
    """

    def __init__(self, uri: str, access: Access, committer: str | None = None) -> None:
        self.uri, self.access, self.committer = uri, access, committer
        self.outside: tuple[str, ...] = ()
        self._root = unquote(uri[7:]) if uri.startswith("file://") else ""

    def check_open(self) -> None:
        """Raise RefusedError if something else makes the table's versions."""
        if self.committer is not None:
            raise RefusedError(
                f"{self.committer} makes the versions of this table itself, so that a commit of files would be lost or "
                "destroy it",
                table=self.uri,
                next_step="maintain the table with an engine that commits through this catalog",
            )

    def check(self, path: str) -> None:
        """Refuse to write or delete at ``path``.

        Raises
        ------
        RefusedError : it is outside the table, or reached through a link; or see :meth:`check_open`.
        """
        self.check_open()
        root, rest = self._below(path)
        if not NO_NAMES.isdisjoint(rest.split("/")):
            raise self.refused(f"{path!r} is not a plain path below the table")
        try:
            with storage_errors(path):
                link = self._link(root, rest.rpartition("/")[0]) if root else None
        except FileNotFoundError:  # `_link` takes a missing folder for one that can be created
            raise RefusedError(
                f"no file can be created at {path}: the path is too long, or a link in it leads to itself",
                table=self.uri,
                next_step="choose another folder",
            ) from None
        if link is not None:
            raise self.refused(f"{path} leads through {link}, which is a link")

    def beyond_link(self, path: str) -> bool:
        """Whether, on local disk, one of the folders between the table's root and ``path`` is a link."""
        if not self._root or "://" in path:
            return False
        with storage_errors(path):
            return self._link(self._root, path.rpartition("/")[0]) is not None

    def refused(self, problem: str) -> RefusedError:
        return RefusedError(
            f"refusing to write or delete there: {problem}",
            table=self.uri,
            next_step="replace the link with the folder itself, or remove the path from the table",
        )

    def _below(self, path: str) -> tuple[str, str]:
        """The local folder that ``path`` must be below ("" if not on local disk), and the rest of the path."""
        if "://" not in path:
            return self._root, path
        for place in (self.uri, *self.outside):
            root = absolute_uri(place)
            if path.startswith(f"{root}/"):
                return unquote(root[7:]) if root.startswith("file://") else "", unquote(path[len(root) + 1 :])
        raise self.refused(f"{path} lies outside the table")

    def _link(self, root: str, folder: str) -> str | None:
        """The first link between ``root``, which is not checked, and ``folder``, which is."""
        at = root
        for part in folder.split("/") if folder else ():
            at = f"{at}/{part}"
            try:
                mode = self.access.lstat(at).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return None
            if stat.S_ISLNK(mode):
                return at
        return None


# -- put-if-absent -----------------------------------------------------------------------------------------------------

_ENDPOINTS: Final = re.compile(r"((aws|azure|azure_storage|google)_)?(endpoint|endpoint_url|endpoint_url_s3|base_url)")
_OF_CLOUDS: Final = re.compile(
    r"https://([\w.-]+\.)?(amazonaws\.com(\.cn)?|googleapis\.com|core\.windows\.net|fabric\.microsoft\.com)(:443)?(/.*)?"
)


@dataclass(frozen=True, slots=True)
class StoreName:
    """What identifies a store whose behaviour is tested.

    endpoint : its address, redacted; ``None`` for a cloud's own.
    """

    scheme: str
    bucket: str
    endpoint: str | None

    @classmethod
    def of(cls, uri: str, options: Mapping[str, str]) -> StoreName:
        parts = urlsplit(uri)
        if parts.scheme in {"http", "https"}:
            found = [f"{parts.scheme}://{parts.netloc}"]
        else:
            found = [value for name, value in options.items() if _ENDPOINTS.fullmatch(name.lower())]
            if parts.scheme == "s3":  # obstore takes these from the environment
                names = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
                found += [os.environ[name] for name in names if os.environ.get(name)]
        endpoint = next((redacted(each) for each in found if not _OF_CLOUDS.fullmatch(each)), None)
        return cls(parts.scheme, parts.netloc, endpoint)

    @property
    def vouched_for(self) -> bool:
        """Whether put-if-absent can be relied on: on local disks, in the clouds' own stores, and in stores that passed
        the test in this process.
        """
        return self.endpoint is None or self in _PROVEN

    def __str__(self) -> str:
        return self.endpoint or f"{self.scheme}://{self.bucket}"


_PROVEN: Final[set[StoreName]] = set()
_WRITERS: Final = 8
_ROUNDS: Final = 5
_BYTES: Final = 256 << 10


def probe_path(folder: str) -> str:
    """The path of the test object: readers of tables ignore names that begin with a dot."""
    return f"{folder}/.dvm-probe-{uuid4()}.tmp".lstrip("/")


def prove(name: StoreName, store: Any, key: str, *, table: str) -> None:
    """Put an object twice at ``key`` and delete it. The second put must fail.

    Raises
    ------
    RefusedError : the store accepts the second put.
    The store's own errors if it does not answer.
    """
    from obstore.exceptions import AlreadyExistsError

    try:
        for data in (b"first", b"second"):
            store.put(key, data, mode="create")
    except AlreadyExistsError:
        # The response to the first put may have been lost, and the client may have repeated it: a failure proves the
        # same then.
        _PROVEN.add(name)
        return
    finally:
        _remove(store, key)
    raise RefusedError(
        f"the store at {name} ignores put-if-absent (If-None-Match): of two writers that commit the same version, one "
        "would be lost",
        table=table,
        next_step="upgrade the store to a release with conditional writes, and keep proxies from stripping the "
        "header; until then write with one process only, and not with this one",
    )


def prove_at_once(name: StoreName, store: Any, key: str, *, table: str) -> None:
    """Several writers put an object at ``key`` at the same moment, a few times over. At most one may succeed: there are
    stores that check the condition first and write later. The objects are large, so that much time is in between: of
    S3Proxy under load, a round with single bytes finds it in one of 15 cases, with these in two of three.

    Raises
    ------
    RefusedError : several puts succeed.
    The store's own errors if it does not answer.
    """
    from concurrent.futures import ThreadPoolExecutor

    from obstore.exceptions import AlreadyExistsError, PreconditionError

    def put(number: int) -> bool:
        try:
            store.put(key, b"%d" % number + bytes(_BYTES), mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in range(_ROUNDS):
            try:
                won = sum(pool.map(put, range(_WRITERS)))
            finally:
                _remove(store, key)
            if won > 1:
                raise RefusedError(
                    f"the store at {name} let {won} of {_WRITERS} simultaneous puts of one new object succeed: of two "
                    "writers that commit the same version, one would be lost",
                    table=table,
                    next_step="let one process at a time write to tables there, or use a store whose conditional "
                    "writes are atomic",
                )


def _remove(store: Any, key: str) -> None:
    with suppress(Exception):  # vacuum finds an object that remains
        store.delete(key)


def try_to_put(store: Any, key: str) -> None:
    """Ask a store for a put that it has to turn down even if it is allowed: the replacement of a version that does not
    exist, of an object that does not exist. Rights come first, so the answer shows whether they suffice.

    Not a put-if-absent of an existing entry, which GCS and Azure deny to those who may create but not replace. If the
    entry vanished at that moment, as in a rollback, that would even bring it back.

    Raises the store's own error if it denies the put.
    """
    from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

    with suppress(PreconditionError, AlreadyExistsError, NotSupportedError, FileNotFoundError, NotImplementedError):
        store.put(key, b"", mode={"e_tag": '"none"', "version": "1"})
        with suppress(Exception):  # a store without conditional writes; vacuum finds what remains
            store.delete(key)
