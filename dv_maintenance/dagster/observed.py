"""The last observation of a table in Dagster, and its data version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import dagster as dg

__all__ = ["DATA_VERSION_TAG", "data_version_of", "data_version_tag", "observed_before"]

DATA_VERSION_TAG: Final = "dagster/data_version"
_FORM: Final = re.compile(r"(\d+)(?:\.([0-9a-f]+))?")


def data_version_tag(version: int | None, lineage: str) -> Mapping[str, str]:
    """The tag of an observation. A table that was dropped and created again counts its versions from 0. With its
    lineage no data version of the one equals one of the other, so consumers notice.
    """
    return {DATA_VERSION_TAG: f"{version}.{lineage}" if lineage else str(version)}


def observed_before(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[int, int] | None:
    """The version and the data version of the table's last observation: where
    :func:`~dv_maintenance.service.data_version.last_data_version` continues. ``None``: there is no observation, or
    another asset reports the data version.

    Without it the history would have to be read to its beginning, and a history that a vacuum shortened does not show
    which version was the last to change data.
    """
    found = _last(instance, key)
    return None if found is None else found[:2]


def data_version_of(instance: dg.DagsterInstance, key: dg.AssetKey, version: int | None) -> str:
    """The data version that a run observes: with the lineage of the last observation, which only the sensor changes."""
    found = _last(instance, key)
    return data_version_tag(version, "" if found is None else found[2])[DATA_VERSION_TAG]


def _last(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[int, int, str] | None:
    for record in instance.fetch_observations(key, limit=1).records:
        observation = record.asset_observation
        version = observation.metadata.get("version") if observation is not None else None
        tag = observation.tags.get(DATA_VERSION_TAG, "") if observation is not None else ""
        match = _FORM.fullmatch(tag)
        if version is not None and isinstance(version.value, int) and match is not None:
            return version.value, int(match[1]), match[2] or ""
    return None
