"""Purge deletion vectors, vacuum expired files and write manifests, as Dagster assets on Spark."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_COMPONENT = "DvMaintainedTables"


def __getattr__(name: str) -> Any:
    # dg looks for components here. By name only: what lies below must not depend on Dagster by importing this.
    if name == _COMPONENT:
        from importlib import import_module

        return getattr(import_module("dv_maintenance.dagster.component"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), _COMPONENT])
