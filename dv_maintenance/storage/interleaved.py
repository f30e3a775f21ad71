"""Several iterators at once, for sources that mostly wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Full, Queue
from threading import Event
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_AHEAD: Final = 2  # items that each thread may be ahead
_PATIENCE: Final = 0.1  # seconds after which a waiting thread looks whether anyone still listens


class _Item(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


def interleaved(sources: Sequence[Iterable[T]], threads: int) -> Iterator[T]:
    """What the sources yield, in any order, each source read by a thread. Memory is bounded: threads wait for the
    caller. The first error of a source is raised here, and ends the others.
    """
    found: Queue[_Item[T] | BaseException | None] = Queue(_AHEAD * threads)
    stopped = Event()

    def put(item: _Item[T] | BaseException | None) -> None:
        while not stopped.is_set():
            with suppress(Full):
                found.put(item, timeout=_PATIENCE)
                return

    def read(source: Iterable[T]) -> None:
        try:
            for value in source:
                put(_Item(value))
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            put(error)
        else:
            put(None)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for source in sources:
                pool.submit(read, source)
            left = len(sources)
            while left:
                item = found.get()
                if item is None:
                    left -= 1
                elif isinstance(item, _Item):
                    yield item.value
                else:
                    raise item
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
