"""Errors of this package in Dagster's terms: retry what may succeed later, fail at once what can't."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from dv_maintenance.errors import DvMaintenanceError, RetryableError

__all__ = ["MAX_RETRIES", "in_dagster_terms"]

MAX_RETRIES = 3


@contextmanager
def in_dagster_terms(retry_number: int) -> Iterator[None]:
    """Raise RetryRequested for what is worth another try (5, 10, 20 seconds later), and Failure without retries for
    the rest; a Failure carries what the command line prints, as metadata. ``retry_number``: the tries this step has
    behind it.
    """
    try:
        yield
    except DvMaintenanceError as error:
        if isinstance(error, RetryableError) and retry_number < MAX_RETRIES:
            wait = 5 * 2**retry_number
            raise dg.RetryRequested(max_retries=MAX_RETRIES, seconds_to_wait=wait) from error
        report = {key: value for key, value in error.to_json().items() if value is not None}
        raise dg.Failure(description=str(error), metadata=report, allow_retries=False) from error
