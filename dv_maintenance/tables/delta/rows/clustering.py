"""Clustered tables (liquid clustering): by which columns, and which files were clustered together.

One run of the engine orders rows along a curve and writes a unit of files, a Z-cube. Each ``add`` then names its unit
and the columns in its tags, and who clustered it in ``clusteringProvider``. delta-spark's OPTIMIZE looks at these
alone: a file without them is clustered (again). So a new file keeps them if all its rows come from files of one unit.
(protocol: Clustered Table; delta-spark: ``ClusteringStrategy``, ``ZCubeInfo``)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import combined, flags, numbers, strings
from dv_maintenance.tables.columns import quoted
from dv_maintenance.tables.delta.rows.schema import physical_name
from dv_maintenance.tables.delta.rows.shredded import may_be_shredded

if TYPE_CHECKING:
    from dv_maintenance.tables.delta.commit.live_file import LiveFile
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

CLUSTERING: Final = "delta.clustering"
"""The domain whose metadata names the columns."""
_UNIT, _COLUMNS, _PROVIDER = "ZCUBE_ID", "ZCUBE_ZORDER_BY", "liquid"
_TAGS: Final = (_UNIT, _COLUMNS, "ZCUBE_ZORDER_CURVE")
# The number of a file in its run, by which the run's files are in the order of the curve.
_NUMBER: Final = re.compile(r"(?:.*/)?part-((?:\d{5}-)+)")


def clustering_columns(domains: Mapping[str, str | None]) -> tuple[tuple[str, ...], ...]:
    """The clustering columns as paths of physical names; empty for a table that is not clustered. Raises
    DamagedTableError.
    """
    configuration = domains.get(CLUSTERING)
    if configuration is None:
        return ()
    try:
        return tuple(tuple(column) for column in orjson.loads(configuration)["clusteringColumns"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise DamagedTableError(f"the domain {CLUSTERING} does not name its columns: {configuration[:200]!r}") from None


def clustered_by(snapshot: DeltaSnapshot) -> tuple[tuple[str, ...], ...]:
    """See ``OrderableTable.clustered_by``. Raises DamagedTableError."""
    return tuple(_logical(column, snapshot.schema) for column in clustering_columns(snapshot.domains))


def _logical(path: Sequence[str], fields: Any) -> tuple[str, ...]:
    name, *rest = path
    field = next((each for each in fields if physical_name(each) == name), None)
    if field is None:
        raise DamagedTableError(f"the table is clustered by {name}, but has no such column")
    return (field.name, *(_logical(rest, field.type) if rest else ()))


def clustered(snapshot: DeltaSnapshot) -> list[bool]:
    """See ``OrderableTable.clustered``."""
    wanted = _columns_text(clustered_by(snapshot))
    found = pc.map_lookup(snapshot.files["tags"], _COLUMNS, "first").to_pylist()
    by = snapshot.files["clustering_provider"].to_pylist()
    return [each == wanted and provider in (None, _PROVIDER) for each, provider in zip(found, by, strict=True)]


def new_unit(unit: str, columns: Iterable[Sequence[str]]) -> tuple[dict[str, str], str]:
    """The tags and the provider of a file that was clustered here. ``columns``: as paths of logical names."""
    return {_UNIT: unit, _COLUMNS: _columns_text(columns)}, _PROVIDER


def _columns_text(columns: Iterable[Sequence[str]]) -> str:
    """As Spark quotes names: ``ZCUBE_ZORDER_BY`` is compared as text."""
    return orjson.dumps([quoted(path) for path in columns]).decode()


def units(snapshot: DeltaSnapshot) -> Any:
    """See ``Snapshot.units``. A file that was clustered by someone who named no unit is a unit of its own. So is each
    file with variants that may be shredded in a way of its own.
    """
    files = snapshot.files
    loose = -2 - np.arange(files.num_rows) if may_be_shredded(snapshot.protocol) else None
    if "clustering" not in snapshot.protocol.features("writer") or not files.num_rows:
        return loose
    provider, tags = files["clustering_provider"], files["tags"]
    nothing = strings([""])[0]
    named = [pc.map_lookup(tags, name, "first") for name in _TAGS]
    has_id = flags(combined(named[0].is_valid()))
    clustered = flags(combined(provider.is_valid())) | has_id
    if not clustered.any():
        return loose
    texts = [pc.fill_null(each, nothing) for each in (provider, *named)]
    found = combined(pc.binary_join_element_wise(*texts, strings(["\0"])[0])).dictionary_encode()
    codes = np.where(clustered, numbers(found.indices).astype(np.int64), -1 if loose is None else loose)
    alone = np.flatnonzero(clustered & ~has_id)
    alone = alone if loose is None else np.flatnonzero(clustered)
    codes[alone] = len(found.dictionary) + np.arange(len(alone))
    return codes


def shared_unit(files: Sequence[LiveFile]) -> tuple[dict[str, str], str | None]:
    """The tags and the provider of a new file with rows of these: those that all share, or none."""
    found = {(file.clustering_provider, *map(_tags(file).get, _TAGS)) for file in files}
    if len(found) > 1 or (len(files) > 1 and _UNIT not in _tags(files[0])):
        return {}, None
    (provider, *values), *_ = found
    return {name: value for name, value in zip(_TAGS, values, strict=True) if value is not None}, provider


def kept_number(path: str) -> str:
    """What the name of a new file begins with that takes the place of ``path``, so that names keep the order of a unit.

    >>> kept_number("Xy/part-00003-c78ebe11-d8ec-4550-8d64-ab2d44653e4d-c000.snappy.parquet")
    'part-00003-'
    """
    found = _NUMBER.match(path)
    return f"part-{found[1]}" if found else "part-"


def new_number(step: str) -> str:
    """What the names of new files of a step begin with, so that names are in the order of their unit.

    >>> new_number("step-12.2")
    'part-00012-{number:05}-'
    """
    found = re.search(r"\d+", step)
    return f"part-{int(found[0]) if found else 0:05}-{{number:05}}-"


def _tags(file: LiveFile) -> Mapping[str, str]:
    tags: Mapping[str, str] = file.rest.get("tags", {})
    return tags
