"""What is used of Dagster beyond its public API, in one place: a new release may move or drop each of these names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import dagster as dg

from dv_maintenance import __version__

__all__ = [
    "ASSET_PARTITION_RANGE_END_TAG",
    "ASSET_PARTITION_RANGE_START_TAG",
    "AUTO_RETRY_RUN_ID_TAG",
    "MAX_RUNTIME_SECONDS_TAG",
    "WILL_RETRY_TAG",
    "AssetCheckExecutionRecord",
    "BaseAssetGraph",
    "BulkActionStatus",
    "BulkActionsFilter",
    "CheckError",
    "DagsterLogHandler",
    "PartitionBackfill",
    "beta",
    "guarded",
    "make_new_backfill_id",
    "public",
]

_MADE_FOR: Final = "Dagster 1.11.7 to 1.13"


@contextmanager
def guarded() -> Iterator[None]:
    """Around imports of names that Dagster does not promise to keep.

    Raises
    ------
    ImportError : says which releases this package was made for, and what to do.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"this release of dv-maintenance was made for {_MADE_FOR}, and Dagster {dg.__version__} is installed: "
            f"{error}. Install a newer dv-maintenance, or one of those releases of Dagster",
            name=error.name,
        ) from error


with guarded():
    from dagster._annotations import beta, public
    from dagster._check import CheckError
    from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
    from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
    from dagster._core.log_manager import DagsterLogHandler
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord
    from dagster._core.storage.tags import (
        ASSET_PARTITION_RANGE_END_TAG,
        ASSET_PARTITION_RANGE_START_TAG,
        AUTO_RETRY_RUN_ID_TAG,
        MAX_RUNTIME_SECONDS_TAG,
        WILL_RETRY_TAG,
    )
    from dagster._core.utils import make_new_backfill_id
    from dagster_shared.libraries import DagsterLibraryRegistry

# What Dagster reports about a code location: its libraries and their releases.
DagsterLibraryRegistry.register("dv-maintenance", __version__, is_dagster_package=False)
