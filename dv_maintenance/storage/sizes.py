"""The sizes of many files at once, with as few requests as are worthwhile.

On local disk a stat is cheaper than a listing. In an object store a page of a listing answers for up to a thousand
names: the wanted names are sorted and divided into ranges, and the ranges are listed in parallel. A listing may be
late, cut short or in another order, so it only ever proves that a file exists: a name that it lacks is asked for by
name.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from dv_maintenance.storage.failures import storage_errors

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

_THREADS: Final = 32
_RANGE: Final = 1000  # names that one thread looks for; so many are a page of a listing
_LONGEST: Final = 10_000
# With fewer names, requests by name are as fast, and never read pages of other names.
_LIST_FROM: Final = 128
# On local disk a stat takes some microseconds, and threads only get into each other's way. Seconds per file.
_SLOW: Final = 100e-6
# A range is listed as long as that is cheaper than asking by name: objects seen per wanted name.
_WASTE: Final = 20

Step = Callable[[int, int], None]


def stored_sizes(storage: Storage, paths: Sequence[str], step: Step | None = None) -> list[int | None]:
    """The size of each file in bytes; ``None`` for one that does not exist.

    step : called with how many files were looked for, and with their number.

    Raises
    ------
    StorageError : the storage did not answer.
    """
    found: dict[str, int | None] = {}
    total = len(paths)

    def collect(sizes: dict[str, int | None]) -> None:
        found.update(sizes)
        if step is not None:
            step(min(len(found), total), total)

    here = [path for path in paths if storage.on_disk(path)]
    away = sorted(set(paths).difference(here))
    parts = iter([here[at : at + _RANGE] for at in range(0, len(here), _RANGE)])
    for part in parts:
        began = time.perf_counter()
        collect(_asked(storage, part))
        if time.perf_counter() - began > _SLOW * len(part):
            break  # a disk behind a network
    with ThreadPoolExecutor(_THREADS) as pool:
        for sizes in pool.map(partial(_asked, storage), parts):
            collect(sizes)
        listed = [path for path in away if "://" not in path] if len(away) >= _LIST_FROM else []
        for sizes in pool.map(partial(_listed, storage), _parts(listed, _RANGE, _LONGEST)):
            collect(sizes)
        lacking = [path for path in away if path not in found]
        for sizes in pool.map(partial(_asked, storage), _parts(lacking, 1, _RANGE)):
            collect(sizes)
    return [found[path] for path in paths]


def _parts(paths: Sequence[str], least: int, most: int) -> Iterator[Sequence[str]]:
    """Consecutive parts, as long as all threads have work."""
    length = max(least, min(most, -(-len(paths) // _THREADS)))
    return (paths[at : at + length] for at in range(0, len(paths), length))


def _listed(storage: Storage, wanted: Sequence[str]) -> dict[str, int | None]:
    """The sizes of those of the ``wanted`` paths, sorted, that a listing from the first to the last one has."""
    found: dict[str, int | None] = {}
    last, names = wanted[-1], frozenset(wanted)
    pages = storage.pages(wanted[0][:-1])  # the shorter name sorts right before
    for page in islice(pages, 1 + len(wanted) * _WASTE // 1000):
        found |= {info.path: info.size for info in page if info.path in names}
        if page and max(info.path for info in page) >= last:
            break
    return found


def _asked(storage: Storage, wanted: Sequence[str]) -> dict[str, int | None]:
    """The sizes by name, one request each."""
    return {path: _size(storage, path) for path in wanted}


def _size(storage: Storage, path: str) -> int | None:
    try:
        if not storage.on_disk(path):
            return storage.head(path).size
        # No context manager unless there is a failure: there may be a million files.
        info = storage.access.stat(storage.local(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        try:
            with storage_errors(path):
                raise error from None
        except FileNotFoundError:
            return None
    return None if stat.S_ISDIR(info.st_mode) else info.st_size
