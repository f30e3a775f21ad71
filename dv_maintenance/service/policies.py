"""Policies as a face gives them: a file, changes of single keys, or neither."""

from __future__ import annotations

from collections.abc import Iterable

from dv_maintenance.maintenance.planning.deadlines import MARGIN
from dv_maintenance.maintenance.planning.policy import Policy

__all__ = ["MARGIN", "Policy", "load"]


def load(path: str | None = None, overrides: Iterable[str] = ()) -> Policy:
    """The policy of a YAML file (``None``: the defaults), with ``key=value`` changes. Raises UsageError."""
    policy = Policy.load(path) if path else Policy()
    return policy.with_overrides(overrides)
