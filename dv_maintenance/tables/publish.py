"""The frame of every commit: read what others committed, decide, create the next version, and try again if another
writer was faster. A format contributes only its rules.

The frame decides what a failed call means. It reads the history before it repeats or abandons a commit with an unknown
outcome. A commit is a success even if its answer got lost, or if a storage client repeated its request. If the outcome
stays unknown, a StorageError is raised, never an error that says that nothing was committed. A storage that denied the
call has answered: nothing was created, and there is no further attempt.
"""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from dv_maintenance.errors import (
    ConflictError,
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
)
from dv_maintenance.tracing import span

_log = logging.getLogger(__name__)

DraftT = TypeVar("DraftT")


class Overtaken(Exception):  # noqa: N818 - not an error: the next attempt builds on what the other writer committed
    """Another writer was faster, so this attempt is out of date. The text says what happened."""


@dataclass(frozen=True, slots=True)
class Published(Generic[DraftT]):
    """The outcome of a commit.

    version : the new version, ``None`` if nothing was left to commit.
    attempts : attempts at creating a version, at least 1.
    draft : what was committed.
    """

    version: int | None
    attempts: int
    draft: DraftT | None = None


class Rules(ABC, Generic[DraftT]):
    """A format's rules: what the next version holds, how a conflict is decided, how our own commit is recognised.

    recognises : whether ``catch_up`` recognises our own commit. Otherwise a repeated call might commit twice, so the
        first StorageError ends the commit.

    Each method may raise Overtaken, and errors that end the commit.
    """

    recognises: ClassVar[bool] = False

    @property
    @abstractmethod
    def table(self) -> str:
        """The table's name in the log."""

    @abstractmethod
    def catch_up(self) -> int | None:
        """Read what was committed since the last call. Returns the version of our own commit if it is there."""

    @abstractmethod
    def draft(self) -> DraftT | None:
        """What to commit on top of what ``catch_up`` read; ``None`` if nothing is left."""

    @abstractmethod
    def create(self, draft: DraftT) -> int:
        """Create the next version, and return it. Raises Overtaken if it exists already and is not known to be our own.
        Raises StorageDeniedError or RefusedError if it was not created, StorageUnavailableError if it may or may not
        exist.
        """

    @abstractmethod
    def defeat(self, attempts: int) -> Exception:
        """The error for ``attempts`` attempts in which another writer was faster."""

    def failed(self, failure: StorageError, *, unknown: bool) -> DvMaintenanceError:
        """The error for a storage that kept failing. ``unknown``: the last version may have been created."""
        if unknown:
            failure.done = "it is not known whether the version was committed"
        return failure


@contextmanager
def before_the_commit() -> Iterator[None]:
    """Context for what comes before an attempt at a commit: whatever fails here, nothing was committed."""
    try:
        yield
    except DvMaintenanceError as error:
        error.uncommitted = True
        raise


def publish(
    rules: Rules[DraftT], *, max_attempts: int, first_pause: float = 0, longest_pause: float = 0
) -> Published[DraftT]:
    """Commit what ``rules`` decide, in ``max_attempts`` attempts.

    ``first_pause``, ``longest_pause``: seconds between attempts, doubled each time, with full jitter.

    Raises
    ------
    Whatever ``rules`` raise, and ``rules.defeat`` or ``rules.failed`` after the last attempt. They are ``uncommitted``
    if nothing was committed for certain.
    """
    race = _Race(rules)
    try:
        return _run(race, max_attempts, first_pause, longest_pause)
    except DvMaintenanceError as error:
        error.uncommitted = not race.unknown
        if not (isinstance(error, ConflictError) and rules.recognises and race.unknown):
            raise
        # This error says that nothing was committed, and its handler deletes the new files.
        raise rules.failed(StorageUnavailableError(error.message), unknown=True) from error


def _run(race: _Race[DraftT], max_attempts: int, first_pause: float, longest_pause: float) -> Published[DraftT]:
    rules = race.rules
    failure: StorageError | None = None
    for number in range(max_attempts):
        if number:
            # Full jitter: losers of one race must not meet again in the next.
            time.sleep(random.uniform(0, min(longest_pause, first_pause * 2**number)))  # noqa: S311 - no secret
        try:
            with span("commit.attempt", table=rules.table, attempt=number + 1):
                return race.attempt()
        except Overtaken as other:
            _log.info("%s: attempt %d of %d lost: %s", rules.table, number + 1, max_attempts, other)
            failure = None
        except StorageError as error:
            if not rules.recognises:
                raise
            if isinstance(error, StorageDeniedError):
                raise rules.failed(error, unknown=race.unknown) from error.__cause__
            _log.warning("%s: commit attempt %d of %d failed: %s", rules.table, number + 1, max_attempts, error)
            failure = error
    if rules.recognises:
        try:
            if (found := race.found()) is not None:  # the last attempt may have created it
                return found
        except StorageError as error:
            failure = failure or error
    raise rules.defeat(max_attempts) if failure is None else rules.failed(failure, unknown=race.unknown)


@dataclass(slots=True)
class _Race(Generic[DraftT]):
    """One commit in progress.

    last : the draft of the last attempt.
    unknown : the last attempt may have created its version, even if that version "exists already": the history has not
        been read since.
    """

    rules: Rules[DraftT]
    last: DraftT | None = None
    attempts: int = 0
    unknown: bool = False

    def attempt(self) -> Published[DraftT]:
        if (found := self.found()) is not None:
            return found
        draft = self.rules.draft()
        if draft is None:
            return Published(None, max(1, self.attempts))
        self.attempts += 1
        self.last, self.unknown = draft, True
        try:
            version = self.rules.create(draft)
        except (StorageDeniedError, RefusedError):
            self.unknown = False
            raise
        _log.info("%s: committed version %d", self.rules.table, version)
        return Published(version, self.attempts, draft)

    def found(self) -> Published[DraftT] | None:
        """Our own commit, if an earlier attempt made it after all."""
        version = self.rules.catch_up()
        self.unknown = False
        return None if version is None else Published(version, max(1, self.attempts), self.last)
