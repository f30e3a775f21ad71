"""A thread decodes what another one encodes, or opens files while others are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import SourceFile

_T = TypeVar("_T")

# While a row group is encoded, the next one is decoded: as many batches as a full one has (``parquet.writer``).
_AHEAD: Final = 16


def read_ahead(items: Iterator[_T]) -> Generator[_T, None, None]:
    """The items in their order, taken from the iterator by another thread, up to 16 before they are asked for. ``None``
    must not be one of them.

    Raises what the iterator raises, after the items before it. Once this iterator is closed, no thread uses the other.
    """
    pool = ThreadPoolExecutor(1)
    try:
        begun = deque(pool.submit(next, items, None) for _ in range(_AHEAD))
        while (item := begun.popleft().result()) is not None:
            begun.append(pool.submit(next, items, None))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def depth(storage: Storage, sources: Iterable[SourceFile], most: int) -> int:
    """How many sources :func:`prefetched` should open ahead: ``most`` in object stores, where each open is a wait, and
    none on local disk.
    """
    return 0 if all(storage.on_disk(source.uri) for source in sources) else most


def prefetched(openers: Iterable[Callable[[], AbstractContextManager[_T]]], most: int) -> Generator[_T, None, None]:
    """What each opener opens, in their order, and open until the next one is asked for. Meanwhile, threads open up to
    ``most`` further ones; 0 means that nothing is opened ahead, and no thread started.

    Raises what an opener raises, after the results of those before it. Once this iterator is closed, all are closed.
    """
    if not most:
        for opener in openers:
            with opener() as found:
                yield found
        return

    def opened(opener: Callable[[], AbstractContextManager[_T]]) -> tuple[ExitStack, _T]:
        with ExitStack() as stack:
            found = stack.enter_context(opener())
            return stack.pop_all(), found

    left = deque(openers)
    begun: deque[Future[tuple[ExitStack, _T]]] = deque()
    pool = ThreadPoolExecutor(most)

    def begin() -> None:
        while left and len(begun) < most:
            begun.append(pool.submit(opened, left.popleft()))

    try:
        begin()
        while begun:
            stack, found = begun.popleft().result()
            with stack:
                begin()
                yield found
    finally:
        pool.shutdown(cancel_futures=True)
        for each in begun:
            if not each.cancelled() and each.exception() is None:
                with suppress(Exception):
                    each.result()[0].close()
