"""Scripts of faults: what goes wrong, and when, as with real disks and object stores.

::

    script = Faults(seed=7, rate=0.1)
    with injected(script):
        purge(open_table(place), LocalEngine())
    print(script.injected)

A script decides about each :class:`Call`; :mod:`~dv_maintenance.testing.faulty_access` carries it out.

Promises under faults:

* A table reads as before the verb or as after it.
* Without an error, the verb's work is done. After an error it is not done, unless the error says that the outcome is
  unknown, or what was done.
* The same verb, run again, succeeds.
* A vacuum finds the files that were left.

Listings may end with an error at any point, or temporarily lack the newest files (``LATE_LIST``). Readers then see an
older version. Commits are safe, since put-if-absent decides and not a listing. Listings that lack older entries without
an error are out of scope: current stores do not produce them.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final, Protocol


class Fault(StrEnum):
    """A fault that may happen to a call."""

    FAIL = "fail"  # it fails without effect
    THROTTLE = "throttle"  # it is refused for now
    FORBID = "forbid"  # it is refused for lack of permission
    DELAY = "delay"  # it takes a while
    DUPLICATE = "duplicate"  # it is carried out twice, and the second answer is returned
    LOSE_ANSWER = "lose answer"  # it is carried out, and still fails
    FULL = "full"  # there is no space
    FULL_HALFWAY = "full halfway"  # there is space for half of it
    CUT_LIST = "cut list"  # a listing fails in the middle
    LATE_LIST = "late list"  # a listing lacks the newest file
    SHORT_READ = "short read"  # less is read than requested


_ANY: Final = frozenset({Fault.FAIL, Fault.THROTTLE, Fault.FORBID, Fault.DELAY})
_CHANGE: Final = _ANY | {Fault.DUPLICATE, Fault.LOSE_ANSWER}
_WRITE: Final = _CHANGE | {Fault.FULL, Fault.FULL_HALFWAY}
_LIST: Final = _ANY | {Fault.CUT_LIST, Fault.LATE_LIST}
_STREAM: Final = _ANY | {Fault.FULL, Fault.FULL_HALFWAY}
"""A stream records what it wrote, so it sends nothing twice."""

# What can happen to a call of each kind.
_POSSIBLE: Final[Mapping[str, frozenset[Fault]]] = {
    "read": _ANY | {Fault.SHORT_READ},
    "read range": _ANY | {Fault.SHORT_READ},
    "head": _ANY,
    "list": _LIST,
    "open input": _ANY,
    "read input": _ANY | {Fault.SHORT_READ},
    "put": _WRITE,
    "create": _WRITE,
    "write new": _STREAM,
    "open output": _STREAM - {Fault.FULL_HALFWAY},
    "write output": _STREAM,
    "close output": _ANY | {Fault.LOSE_ANSWER, Fault.FULL},
    "delete": _CHANGE,
    "link": _WRITE - {Fault.FULL_HALFWAY},
    "rename": _CHANGE,
    "copy": _CHANGE | {Fault.FULL},
    "make folder": _CHANGE | {Fault.FULL},
    "remove folder": _CHANGE,
}
_READS: Final = frozenset({"read", "read range", "head", "list", "open input", "read input"})


@dataclass(frozen=True, slots=True)
class Call:
    """One storage call.

    number : counted from 1.
    operation : what it does.
    path : path or key.
    """

    number: int
    operation: str
    path: str

    @property
    def changes(self) -> bool:
        return self.operation not in _READS

    @property
    def possible(self) -> frozenset[Fault]:
        return _POSSIBLE[self.operation]


class Killed(BaseException):
    """The process is dead: code that still runs in a test has no effect on the storage."""


class Script(Protocol):
    """Decides what happens to each call."""

    def fault(self, call: Call) -> Fault | None:
        """The fault of a call; ``None`` for none. Raises Killed: neither this nor any later call takes effect."""

    def done(self, call: Call) -> None:
        """The call took effect, or was answered with an error. Raises Killed: no later call takes effect."""


@dataclass(slots=True)
class Faults:
    """Random faults, reproducible for the same ``seed`` and the same calls.

    rate : share of calls that fail.
    most : number of faults at most; ``None`` without a limit.
    injected : fault -> how many were injected.
    """

    seed: int
    rate: float = 0.1
    kinds: frozenset[Fault] = frozenset(Fault)
    most: int | None = None
    injected: Counter[Fault] = field(default_factory=Counter)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311 - to be repeated

    def fault(self, call: Call) -> Fault | None:
        drawn = self._random.random()
        kinds = sorted(self.kinds & call.possible)
        if drawn >= self.rate or not kinds or self.injected.total() == self.most:
            return None
        kind = self._random.choice(kinds)
        self.injected[kind] += 1
        return kind

    def done(self, call: Call) -> None:
        """Nothing more to it."""


@dataclass(slots=True)
class Recorder:
    """No faults: only records the calls."""

    calls: list[Call] = field(default_factory=list)

    def fault(self, call: Call) -> None:
        self.calls.append(call)

    def done(self, call: Call) -> None:
        """Nothing more to it."""

    def points(self) -> list[Call]:
        """The calls that change the storage. Of consecutive writes to one file only the first counts: how much of an
        uncommitted file is written does not matter.
        """
        found: list[Call] = []
        for call in self.calls:
            same = found and (found[-1].operation, found[-1].path) == (call.operation, call.path)
            if call.changes and not (same and call.operation == "write output"):
                found.append(call)
        return found


@dataclass(slots=True)
class Meanwhile:
    """No fault, but ``work`` of another process, once, before the call ``number``."""

    number: int
    work: Callable[[], object]

    def fault(self, call: Call) -> None:
        if call.number == self.number:
            self.work()

    def done(self, call: Call) -> None:
        """Nothing more to it."""


@dataclass(slots=True)
class Kill:
    """A kill at the call ``number``.

    when : ``before`` the call, ``after`` it took effect, or ``halfway``, if the call can be left half done.
    by_signal : kill the process for real.
    """

    number: int
    when: str = "before"
    by_signal: bool = False

    def fault(self, call: Call) -> Fault | None:
        if call.number == self.number and self.when == "before":
            self._die(call)
        if call.number == self.number and self.when == "halfway" and Fault.FULL_HALFWAY in call.possible:
            return Fault.FULL_HALFWAY
        return None

    def done(self, call: Call) -> None:
        if call.number == self.number:
            self._die(call)

    def _die(self, call: Call) -> None:
        if self.by_signal:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Killed(f"{self.when} call {call.number}: {call.operation} {call.path}")
