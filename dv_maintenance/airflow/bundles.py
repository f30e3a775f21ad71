"""Files of DAG bundles, in a triggerer: Airflow fetches bundles for the DAG processor and for tasks only."""

from __future__ import annotations

import time
from math import inf
from pathlib import Path
from typing import Any, Final

from dv_maintenance.errors import UsageError

_SECONDS_BETWEEN: Final = 60.0
# By name: those that this process fetched, and when.
_FETCHED: Final[dict[str, tuple[Any, float]]] = {}


def fetched(file: str) -> str:
    """Where a file is on this machine, as new as its DAG bundle.

    file : as the DAG processor calls it. What exists here is not fetched: a DAG processor does that.

    Raises UsageError if there is no such file, and no bundle that could have it. Errors of the bundle pass through.
    """
    path = Path(file)
    if path.exists() and not any(parent.name in _FETCHED for parent in path.parents):
        return file
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    known = {bundle.name: bundle for bundle in DagBundlesManager().get_all_dag_bundles()}
    base = next((parent for parent in path.parents if parent.name in known), None)
    if base is None:
        raise UsageError(
            f"the triggerer has no file {file}", next_step="put it there, or into the DAG bundle of the DAG"
        )
    bundle, at = _FETCHED.get(base.name, (known[base.name], -inf))
    if time.monotonic() - at > _SECONDS_BETWEEN:
        bundle.refresh() if base.name in _FETCHED else bundle.initialize()
        _FETCHED[base.name] = bundle, time.monotonic()
    return str(bundle.base_dir / path.relative_to(base))
