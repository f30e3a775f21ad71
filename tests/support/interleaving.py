"""Processes on one table, paused and resumed at their calls to the storage. They are threads; one runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dv_maintenance.storage import Storage

CALLS = (
    *("get", "get_range", "head", "list", "walk", "first_names", "folders"),
    *("open_input", "open_output", "put", "create", "delete", "move"),
)
PATIENCE = 60  # seconds that one step may take

T = TypeVar("T")


class Watched(Storage):
    """Calls ``before`` in front of each call, with its number from 1 on. Calls of one process may come from several
    threads, but ``before`` is never run twice at a time.
    """

    def __init__(self, place: str, before: Callable[[int], object]) -> None:
        super().__init__(place)
        self.calls, self._before, self._lock = 0, before, threading.Lock()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.calls += 1
                self._before(self.calls)
            return found(*args, **kwargs)

        return call


class Process(Generic[T]):
    """Runs ``work`` on a separate storage until right before one of its calls, then continues from there."""

    def __init__(self, place: str, work: Callable[[Storage], T]) -> None:
        self._stop_at = 0
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.storage = Watched(place, self._before)
        self.result: T | None = None
        self.error: Exception | None = None
        self.over = False
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._started = False

    def until(self, call: int) -> Process[T]:
        """Run up to the call with this number, not included, or to the end."""
        self._stop_at = call
        if self._started:
            self._go.release()
        else:
            self._started = True
            self._thread.start()
        assert self._stopped.acquire(timeout=PATIENCE), "it hangs"
        return self

    def finish(self) -> Process[T]:
        return self if self.over else self.until(0)

    def _run(self, work: Callable[[Storage], T]) -> None:
        try:
            self.result = work(self.storage)
        except Exception as error:  # noqa: BLE001 - the test inspects it
            self.error = error
        self.over = True
        self._stopped.release()

    def _before(self, call: int) -> None:
        if call == self._stop_at:
            self._stopped.release()
            self._go.acquire()
