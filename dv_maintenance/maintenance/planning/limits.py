"""The limits beyond which a table's state is a warning or an error: the ``checks`` part of a policy."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dv_maintenance.config import Duration

Severity = Literal["warn", "error"]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def on(self) -> bool:
        """Whether the limits are switched on."""
        return any(limit is not None for limit in self.model_dump().values())


LimitsT = TypeVar("LimitsT", bound=_Limits)


def _crossed(value: float, warn: float | None, error: float | None) -> Severity | None:
    if error is not None and value > error:
        return "error"
    return "warn" if warn is not None and value > warn else None


def _negative(limit: int | None) -> int | None:
    return None if limit is None else -limit


def _ordered(limits: LimitsT, first: float | None, then: float | None) -> LimitsT:
    if first is not None and then is not None and first > then:
        raise ValueError("warn must come before error")
    return limits


class RatioLimits(_Limits):
    """Shares of 1, crossed from below. ``None``: never."""

    warn: Ratio | None = None
    error: Ratio | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        return _ordered(self, self.warn, self.error)

    def crossed(self, value: float) -> Severity | None:
        return _crossed(value, self.warn, self.error)


class DurationLimits(_Limits):
    """Milliseconds, crossed from below. ``None``: never."""

    warn: Duration | None = None
    error: Duration | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        return _ordered(self, self.warn, self.error)

    def crossed(self, value: int) -> Severity | None:
        return _crossed(value, self.warn, self.error)


class RetentionLimits(_Limits):
    """Milliseconds, crossed by shorter durations. ``None``: never."""

    warn: Duration | None = None
    error: Duration | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        return _ordered(self, self.error, self.warn)

    def crossed(self, value: int) -> Severity | None:
        return _crossed(-value, _negative(self.warn), _negative(self.error))

    def at_most(self, most: int) -> RetentionLimits:
        """No limit longer than this."""
        shorter = {name: min(limit, most) for name, limit in (("warn", self.warn), ("error", self.error)) if limit}
        return self.model_copy(update=shorter)


class CheckLimits(_Limits):
    """Limits by check; each is crossed strictly beyond its number, and ``null`` switches it off."""

    deleted_ratio: RatioLimits = RatioLimits(warn=0.1, error=0.3)
    """Deleted rows / physical rows of the table."""
    oldest_dv: DurationLimits = DurationLimits.model_validate({"warn": "7d", "error": "30d"})
    """How long ago the oldest live deletion vector was committed."""
    small_files: RatioLimits = RatioLimits(warn=0.5)
    """Files that merging small ones would save / all files."""
    retention: RetentionLimits = RetentionLimits.model_validate({"warn": "1d", "error": "1h"})
    """How long vacuum keeps unneeded files; see :meth:`of_retention`."""
    manifest_lag: DurationLimits = DurationLimits.model_validate({"warn": "1h", "error": "1d"})
    """By how much the newest version is younger than the manifests."""
    maintained_within: Duration | None = Field(default=None, ge=60_000)
    """The maximum time since the last run of each of the table's jobs, milliseconds; at least a minute. For tables that
    a schedule maintains: a sensor starts no run for a table that needs no work."""

    def of_retention(self, default: int | None) -> RetentionLimits:
        """The limits of ``retention`` for tables of a format.

        default : how long its tables keep unused files by default, milliseconds. Unless the policy sets limits, a table
            that keeps them so long is in order: its own engine deletes them after the same time.
        """
        return (
            self.retention
            if default is None or "retention" in self.model_fields_set
            else self.retention.at_most(default)
        )
