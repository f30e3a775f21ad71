"""``TABLES.yaml``: which tables to watch, with defaults for all and overrides per table.

defaults:
storage_options: {region: eu-central-1, secret_access_key: "${SECRET}"}
policy: {max_deleted_ratio: 0.1}
tables:
- name: orders
path: s3://lake/orders
policy: {target_file_size: 512MiB}
jobs: [optimize, vacuum, manifest]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dv_maintenance.config import expand_env, load_yaml, validate
from dv_maintenance.maintenance.policy import Policy

__all__ = ["Job", "WatchConfig", "WatchedTable"]

Job = Literal["optimize", "vacuum", "manifest"]

# Keys under which a table adds to the defaults instead of replacing them.
_MERGED = ("policy", "storage_options")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str | None = None
    """``None``: found out."""
    storage_options: dict[str, Annotated[str, AfterValidator(expand_env)]] = Field(default_factory=dict, repr=False)
    """Passed to the storage; ``${NAME}`` stands for an environment variable."""
    policy: Policy = Field(default_factory=Policy)
    jobs: tuple[Job, ...] = ("optimize", "vacuum")
    """Work to look for."""


class WatchedTable(_Settings):
    """One table. ``name``: the last part of the path unless given."""

    name: str = Field(min_length=1)
    path: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _name_from_path(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "name" not in values and isinstance(values.get("path"), str):
            return {**values, "name": values["path"].rstrip("/").rsplit("/", 1)[-1]}
        return values


class WatchConfig(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    defaults: _Settings = Field(default_factory=_Settings)
    tables: tuple[WatchedTable, ...] = Field(min_length=1)

    @classmethod
    def load(cls, path: str) -> WatchConfig:
        """From a YAML file; relative paths of tables start at its folder. Raises UsageError that names the key, the
        file and the line.
        """
        config = validate(cls, load_yaml(path), what="tables to watch")
        folder = os.path.dirname(os.path.abspath(path))
        tables = tuple(each.model_copy(update={"path": _rooted(each.path, folder)}) for each in config.tables)
        return config.model_copy(update={"tables": tables})

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        defaults = values.get("defaults") if isinstance(values, Mapping) else None
        if not isinstance(defaults, Mapping) or not isinstance(values.get("tables"), list):
            return values
        return {**values, "tables": [_merged(defaults, each) for each in values["tables"]]}

    @model_validator(mode="after")
    def _one_name_each(self) -> WatchConfig:
        names = [each.name for each in self.tables]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two tables are called {twice!r}: give them names")
        return self


def _merged(defaults: Mapping[str, Any], table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table
    merged = {**defaults, **table}
    for key in _MERGED:
        if isinstance(defaults.get(key), Mapping) and isinstance(table.get(key), Mapping):
            merged[key] = {**defaults[key], **table[key]}
    return merged


def _rooted(path: str, folder: str) -> str:
    return path if "://" in path or path.startswith(("file:", "~")) else os.path.join(folder, path)
