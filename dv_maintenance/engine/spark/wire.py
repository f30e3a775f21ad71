"""Messages between a Spark driver and its Python workers, as JSON: bundles of specs to the workers, outcomes back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from dv_maintenance import errors
from dv_maintenance.engine.rewrite import rewrite_retrying
from dv_maintenance.engine.rows.values import scalar_of
from dv_maintenance.engine.rows_so_far import counting_in
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.work import RewriteResult, RewriteTask

_ERROR_KEYS: Final = {"error", "state"}
# Results of a bundle arrive together, so it must not take much longer than estimated.
_PATIENCE_SECONDS: Final = 10.0


def specs_of(tasks: Mapping[int, RewriteTask]) -> pa.Table:
    """The driver's side: a bundle as one row with the column ``bundle``. ``tasks``: by their numbers."""
    return pa.table({"bundle": _texts(json.dumps([[number, task.to_json()] for number, task in tasks.items()]))})


def run_bundles(
    batches: Iterable[pa.RecordBatch], options: Mapping[str, str], counts: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The worker's side: from batches with the column ``bundle`` to batches with the column ``outcomes``. Does not
    import pandas. ``counts``: see ``rows_so_far.counting_in``.

    A bundle of several tasks ends early, so that the rest is left to another one: after a task that failed, and after
    ten seconds. An error that nobody foresaw, such as a lack of memory, costs it only the task itself, whose outcome is
    null: run alone, the task fails or succeeds by Spark's rules, which may try it on another machine.
    """
    for batch in batches:
        for bundle in batch.column("bundle"):
            outcomes = list(_outcomes(json.loads(bundle.as_py()), options, counts))
            yield pa.RecordBatch.from_arrays([_texts(json.dumps(outcomes))], names=["outcomes"])
            # The worker process is reused: the memory that a wide table needed should not remain in its pool.
            pa.default_memory_pool().release_unused()


def _outcomes(
    specs: Sequence[tuple[int, Mapping[str, Any]]], options: Mapping[str, str], counts: str | None
) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    began = time.monotonic()
    for at, (number, spec) in enumerate(specs):
        if at and time.monotonic() - began > _PATIENCE_SECONDS:
            return
        try:
            on_rows = counting_in(counts, number) if counts else None
            yield number, rewrite_retrying(RewriteTask.from_json(spec), options, on_rows).to_json()
        except DvMaintenanceError as error:
            known = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in errors.__all__)
            yield number, {"error": known, "state": vars(error)}
            return
        except Exception:
            if len(specs) == 1:
                raise
            yield number, None


def outcomes_of(text: str) -> Iterator[tuple[int, RewriteResult | None]]:
    """The driver's side: results by the numbers of their tasks, ``None`` for a task that has to run alone. Raises a
    worker's error with its original class.
    """
    for number, body in json.loads(text):
        if body is None or body.keys() != _ERROR_KEYS:
            yield number, body and RewriteResult.from_json(body)
            continue
        state = body["state"]
        raise errors.rebuild_error(getattr(errors, body["error"]), (state["message"],), state)


def _texts(text: str) -> pa.Array:
    return pa.repeat(scalar_of(text, pa.string(), "text"), 1)
