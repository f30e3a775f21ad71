"""Errors of this package in Dagster's terms: retry transient ones, fail at once on all others.

A run that a sensor requested keeps an error that would recur in a tag. The sensor does not request that run again, or
waits longer and longer if somebody can put it right (``service.decision``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.errors import DvMaintenanceError, FatalError, RestorableError, RetryableError
from dv_maintenance.resources import system_errors
from dv_maintenance.service.decision import FILES

MAX_RETRIES = 3
# The page shows tags beside the run.
_MAX_TAG = 500


class _Step(Protocol):
    """The context of an op or an asset."""

    @property
    def instance(self) -> dg.DagsterInstance: ...
    @property
    def run(self) -> dg.DagsterRun: ...
    @property
    def retry_number(self) -> int: ...
    @property
    def op_def(self) -> dg.OpDefinition: ...


@contextmanager
def in_dagster_terms(step: _Step) -> Iterator[None]:
    """Raise RetryRequested for a retryable error, and Failure without retries for any other. A Failure has what the
    command line prints as metadata.

    Retries go by the op's retry policy; without one, there are three, after 5, 10 and 20 seconds.
    """
    try:
        with system_errors():
            yield
    except DvMaintenanceError as error:
        retryable, recurs = isinstance(error, RetryableError), isinstance(error, FatalError)
        restorable = isinstance(error, RestorableError)
        damage = isinstance(error, FILES)
        policy = step.op_def.retry_policy
        most = MAX_RETRIES if policy is None else policy.max_retries
        if retryable and step.retry_number < most:
            before = step.retry_number
            wait = 5 * 2**before if policy is None else policy.calculate_delay(before + 1)
            raise dg.RetryRequested(max_retries=most, seconds_to_wait=wait) from error
        # Only a run for one table has a version.
        if recurs and naming.VERSION_TAG in step.run.tags:
            tags = {naming.REFUSED_TAG: _shortened(str(error))}
            if restorable:
                tags[naming.RESTORABLE_TAG] = "true"
            if damage:
                tags[naming.DAMAGE_TAG] = "true"
            step.instance.add_run_tags(step.run.run_id, tags)
        report = {key: value for key, value in error.to_json().items() if value is not None and key != "remedy"}
        raise dg.Failure(description=str(error), metadata=report, allow_retries=False) from error


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TAG else f"{text[: _MAX_TAG - 1]}…"
