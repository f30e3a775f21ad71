"""The one decision: what becomes of due work, whatever the orchestrator knows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from dv_maintenance.service.decision import Attempts, Decision, Facts, decide
from dv_maintenance.service.due import RunRequest
from dv_maintenance.units import format_instant

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1000 * DAY
OPTIMIZE = RunRequest("orders", ("optimize",), 7)
VACUUM = RunRequest("orders", ("vacuum",), 7, vacuum_checked=5)


def decided(attempts: Attempts | dict[str, Attempts] | None = None, *runs: RunRequest, **facts: Any) -> Decision:
    by_job = attempts if isinstance(attempts, dict) else {"optimize": attempts or Attempts()}
    known = Facts(facts.pop("busy", None), lambda run: by_job.get(run.jobs[0], Attempts()), **facts)
    return decide(runs or [OPTIMIZE], known, NOW)


def waits(**kind: Any) -> list[int | None]:
    """Hours before the next run, by number of attempts from 1 on; ``None``: not before something changes."""
    found = []
    for number in range(1, 10):
        each = decided(Attempts(number, NOW, **kind))
        found.append(0 if each.requested else None if each.again is None else (each.again - NOW) // HOUR)
    return found


def test_nothing_is_due() -> None:
    assert decide([], Facts(None, lambda _: Attempts()), NOW) == Decision("nothing")


def test_new_work_begins() -> None:
    found = decided()
    assert (found.kind, found.requested, found.reason) == ("new", OPTIMIZE, "")


def test_errors_that_may_pass() -> None:
    assert waits() == [0, 0, 1, 2, 4, 8, 16, 24, 24]
    assert decided(Attempts(10**6, NOW)).again == NOW + DAY


def test_a_run_that_was_canceled_is_asked_for_again_under_a_key_of_its_own() -> None:
    keys = set()
    for number in range(3):
        found = decided(Attempts(number, NOW, "was canceled (run 1a2b)"))
        assert found.requested is not None
        keys.add(found.requested.key)
    assert len(keys) == 3
    assert found.kind == "retry"
    assert found.reason == ("attempt 3: 2 runs of optimize at version 7 ended, the last one was canceled (run 1a2b)")
    stopped = decided(Attempts(3, NOW, "was canceled (run 1a2b)"))
    assert (stopped.kind, stopped.requested, stopped.again) == ("waits", None, NOW + HOUR)
    assert stopped.reason.startswith(
        "3 runs of optimize at version 7 ended, the last one was canceled (run 1a2b); waiting for a new version or "
    )


def test_success_without_effect_is_not_repeated_at_once() -> None:
    assert waits(how="succeeded, but left it due", idle=True) == [1, 2, 4, 8, 16, 24, 24, 24, 24]


def test_refusals_wait_for_a_change() -> None:
    assert waits(refusal="It uses a feature.") == [None] * 9
    found = decided(Attempts(1, NOW, refusal="It uses a feature."))
    assert found.kind == "refused"
    assert found.reason == (
        "optimize at version 7 failed, and would fail again; waiting for a new version, other settings or another "
        "release. It uses a feature."
    )


def test_damage_waits_from_the_first_failure() -> None:
    found = waits(refusal="A file is missing.", damage=True)
    assert found == [1, 2, 4, 8, 16, 24, 24, 24, 24]
    assert all(one <= other for one, other in pairwise(wait for wait in found if wait is not None))
    waiting = decided(Attempts(1, NOW, refusal="It may not write.", damage=True))
    assert waiting.kind == "damaged"
    # Not for the right to write: nobody sees it given back before the next run.
    assert waiting.reason == (
        "optimize at version 7 failed, and would fail again; waiting for a new version, other settings, another "
        "release, missing files or the right to read them to be back or "
        f"{format_instant(NOW + HOUR)}. It may not write."
    )


def test_a_permission_or_software_waits_from_the_first_failure() -> None:
    assert waits(refusal="No Java was found.", restorable=True) == [1, 2, 4, 8, 16, 24, 24, 24, 24]
    waiting = decided(Attempts(1, NOW, refusal="No Java was found.", restorable=True))
    assert (waiting.kind, waiting.again) == ("refused", NOW + HOUR)
    assert waiting.reason.startswith(
        "optimize at version 7 failed, and would fail again; waiting for a new version, other settings, another "
        f"release, what the error names to be put right or {format_instant(NOW + HOUR)}. No Java"
    )


@pytest.mark.parametrize(("readable_since", "requested"), [(None, False), (0, False), (NOW, False), (NOW + 1, True)])
def test_damage_that_was_seen_to_be_gone(readable_since: int | None, requested: bool) -> None:
    attempts = Attempts(5, NOW, refusal="A file is missing.", damage=True)
    assert bool(decided(attempts, readable_since=readable_since).requested) is requested


def test_nothing_begins_on_a_table_that_was_just_found_damaged() -> None:
    found = decided(damage="a.parquet does not exist. Next: dvm fsck /lake/orders")
    assert (found.kind, found.requested) == ("damaged", None)
    assert found.reason == (
        "optimize due, but nothing is started on a damaged table: a.parquet does not exist. Next: dvm fsck /lake/orders"
    )


def test_a_table_that_is_worked_on_is_left_alone() -> None:
    found = decided(Attempts(2, 0), busy="run 1a2b3c4d")
    assert (found.kind, found.reason) == ("busy", "optimize due, but run 1a2b3c4d is working on it")


def test_a_run_that_waits_does_not_hold_up_the_other() -> None:
    """A rewrite that would fail again does not prevent vacuums."""
    refused = {"vacuum": Attempts(3, NOW), "optimize": Attempts()}
    assert decided(refused, VACUUM, OPTIMIZE).requested == OPTIMIZE
    assert decided({"optimize": Attempts(1, NOW, refusal="no")}, VACUUM, OPTIMIZE).requested == VACUUM
    both = decided({"vacuum": Attempts(3, NOW), "optimize": Attempts(1, NOW, refusal="no")}, VACUUM, OPTIMIZE)
    assert (both.kind, both.run) == ("waits", VACUUM.__class__(**{**_fields(VACUUM), "failed": 3}))
    assert "the next search for expired files" in both.reason


def _fields(run: RunRequest) -> dict[str, Any]:
    return {name: getattr(run, name) for name in RunRequest.__slots__}
