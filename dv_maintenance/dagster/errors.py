"""Errors of this package in Dagster's terms: retry those that may pass, fail at once on the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from dv_maintenance.errors import DvMaintenanceError, RetryableError

__all__ = ["MAX_RETRIES", "in_dagster_terms"]

MAX_RETRIES = 3


@contextmanager
def in_dagster_terms(retry_number: int) -> Iterator[None]:
    """Raise RetryRequested (after 5, 10, 20 seconds) for a retryable error, and Failure without retries for any other.
    A Failure has what the command line prints as metadata.

    retry_number : earlier attempts of this step.
    """
    try:
        yield
    except DvMaintenanceError as error:
        if isinstance(error, RetryableError) and retry_number < MAX_RETRIES:
            wait = 5 * 2**retry_number
            raise dg.RetryRequested(max_retries=MAX_RETRIES, seconds_to_wait=wait) from error
        report = {key: value for key, value in error.to_json().items() if value is not None}
        raise dg.Failure(description=str(error), metadata=report, allow_retries=False) from error
