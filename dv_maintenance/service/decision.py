"""Whether to request a run for a table, and if not, why not: one decision for every orchestrator.

It is pure. An orchestrator's driver brings what it knows as :class:`Facts`, and does what the :class:`Decision` says: a
sensor requests a run, a watcher fires an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from dv_maintenance.errors import DamagedTableError, StorageDeniedError, TableNotFoundError
from dv_maintenance.units import count, format_instant

if TYPE_CHECKING:
    from dv_maintenance.service.due import RunRequest

AT_ONCE = 3
"""Runs of the same work that follow each other without a pause."""
FILES = DamagedTableError | StorageDeniedError | TableNotFoundError
"""Errors about a table's files, or the rights to them: an inspection may see that these are back."""
_HOUR = 3_600_000
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True)
class Attempts:
    """Runs of one table, version, jobs and settings that have ended, although the work is still due.

    ``count`` : how many: failed, canceled, lost, or successful without any effect.
    ``ended`` : when the last one ended, epoch milliseconds; 0 without any.
    ``how`` : what became of the last one, such as ``failed`` or ``was canceled``.
    ``refusal`` : its error, if it would recur in the same run; ``None``: it may have passed.
    ``restorable`` : somebody can put right what that error names without a commit, other settings or another release.
    ``damage`` : so it is, and it is one of FILES.
    ``idle`` : it succeeded, and changed nothing.
    """

    count: int = 0
    ended: int = 0
    how: str = "failed"
    refusal: str | None = None
    restorable: bool = False
    damage: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What an orchestrator knows of a table.

    ``busy`` : the run that works on it, such as ``run 1a2b3c4d``, however started; ``None``: there is none.
    ``attempts`` : of a request.
    ``damage`` : what is wrong with the table's files or its log, as far as it was seen; ``None``: nothing.
    ``readable_since`` : since when the newest version can be read, epoch milliseconds; ``None``: not known.
    """

    busy: str | None
    attempts: Callable[[RunRequest], Attempts]
    damage: str | None = None
    readable_since: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do.

    ``kind`` : ``new`` and ``retry`` request ``run``; ``waits`` for a time, ``refused`` for a change of the table, its
        settings or the release, ``damaged`` for its files, ``busy`` for a run; ``nothing`` is due.
    ``reason`` : what stands in the way, or which attempt this is.
    ``again`` : the earliest time of the next run, epoch milliseconds; ``None``: not before something changes.
    """

    kind: Literal["nothing", "new", "retry", "busy", "waits", "refused", "damaged"]
    run: RunRequest | None = None
    reason: str = ""
    again: int | None = None

    @property
    def requested(self) -> RunRequest | None:
        return self.run if self.kind in {"new", "retry"} else None


def decide(runs: Sequence[RunRequest], facts: Facts, now: int, at_once: int = AT_ONCE) -> Decision:
    """The first of the runs that may begin now, or what stands in the way of the first one.

    Transient errors: ``at_once`` runs, then one after an hour, two hours, four, and so on up to a day. Runs that
    succeed without any effect wait like that from the first one on, and so do those that fail on damaged files, unless
    these are seen to be back, without a permission, or without software. Any other error that would recur waits for a
    new version, other settings or another release: each makes it other work.

    ``now`` : epoch milliseconds.
    """
    if not runs:
        return Decision("nothing")
    due = " and ".join(job for run in runs for job in run.jobs)
    if facts.busy is not None:
        return Decision("busy", runs[0], f"{due} due, but {facts.busy} is working on it")
    if facts.damage is not None:
        return Decision("damaged", runs[0], f"{due} due, but nothing is started on a damaged table: {facts.damage}")
    blocked = None
    for run in runs:
        attempts = facts.attempts(run)
        numbered = replace(run, failed=attempts.count)
        if not attempts.count:
            return Decision("new", numbered)
        again = _next_try(attempts, facts.readable_since, at_once)
        if again is not None and again <= now:
            return Decision("retry", numbered, f"attempt {attempts.count + 1}: {_ended(numbered, attempts)}")
        blocked = blocked or _blocked(numbered, attempts, again)
    assert blocked is not None
    return blocked


def _next_try(attempts: Attempts, readable_since: int | None, at_once: int) -> int | None:
    """The earliest time of the next run, epoch milliseconds; 0: now."""
    if attempts.refusal is not None and not (attempts.restorable or attempts.damage):
        return None
    if attempts.refusal is not None and readable_since is not None and readable_since > attempts.ended:
        return 0
    slow = attempts.refusal is not None or attempts.idle
    waits = attempts.count - (0 if slow else at_once - 1)
    return attempts.ended + min(_HOUR << min(waits - 1, 10), _DAY) if waits > 0 else 0


def _blocked(run: RunRequest, attempts: Attempts, again: int | None) -> Decision:
    until = ["the next search for expired files" if run.vacuum_checked else "a new version"]
    if attempts.refusal is not None:
        until += ["other settings", "another release"]
    if attempts.damage:
        # An inspection sees no other damage, and not whether it may write.
        until.append("missing files or the right to read them to be back")
    elif attempts.restorable:
        until.append("what the error names to be put right")
    if again is not None:
        until.append(format_instant(again))
    waiting = f"waiting for {', '.join(until[:-1])} or {until[-1]}" if len(until) > 1 else f"waiting for {until[0]}"
    error = f". {attempts.refusal}" if attempts.refusal is not None else ""
    kind: Literal["damaged", "refused", "waits"] = "waits"
    if attempts.refusal is not None:
        kind = "damaged" if attempts.damage else "refused"
    return Decision(kind, run, f"{_ended(run, attempts)}; {waiting}{error}", again)


def _ended(run: RunRequest, attempts: Attempts) -> str:
    """What became of the attempts."""
    jobs = " and ".join(run.jobs)
    if attempts.refusal is not None:
        return f"{jobs} at version {run.version} failed, and would fail again"
    if attempts.count == 1:
        return f"the run of {jobs} at version {run.version} {attempts.how}"
    return f"{count(attempts.count, 'run')} of {jobs} at version {run.version} ended, the last one {attempts.how}"
