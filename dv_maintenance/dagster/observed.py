"""The last observation of a table in Dagster."""

from __future__ import annotations

import dagster as dg

__all__ = ["observed_before"]


def observed_before(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[int, int] | None:
    """The version and the data version of the table's last observation: where
    :func:`~dv_maintenance.service.data_version.last_data_version` continues. ``None``: there is no observation, or
    another asset reports the data version.

    Without it the history would have to be read to its beginning, and a history that a vacuum shortened does not show
    which version was the last to change data.
    """
    for record in instance.fetch_observations(key, limit=1).records:
        observation = record.asset_observation
        version = observation.metadata.get("version") if observation is not None else None
        data_version = observation.tags.get("dagster/data_version", "") if observation is not None else ""
        if version is not None and isinstance(version.value, int) and data_version.isdecimal():
            return version.value, int(data_version)
    return None
