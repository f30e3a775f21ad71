"""``op:`` of a component: how its ops run."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields.

from typing import Any, Literal

import dagster as dg
from pydantic import Field, field_validator

from dv_maintenance.service.tables_file import TableSettings


class Retries(dg.Model, dg.Resolvable):
    """The fields of Dagster's RetryPolicy."""

    max_retries: int = Field(default=1, description="Attempts after the first.")
    delay: float | None = Field(default=None, description="Seconds before a retry.")
    backoff: Literal["linear", "exponential"] | None = Field(default=None, description="How the delay grows.")
    jitter: Literal["full", "plus_minus"] | None = Field(default=None, description="How the delay is varied.")

    # A bound of the field would also be asked of templates.
    @field_validator("max_retries", "delay")
    @classmethod
    def _not_negative(cls, value: float | None) -> float | None:
        if value is not None and value < 0:
            raise ValueError("less than 0")
        return value

    @property
    def policy(self) -> dg.RetryPolicy:
        return dg.RetryPolicy(
            max_retries=self.max_retries,
            delay=self.delay,
            backoff=None if self.backoff is None else dg.Backoff[self.backoff.upper()],
            jitter=None if self.jitter is None else dg.Jitter[self.jitter.upper()],
        )


class DvOpSpec(dg.Model, dg.Resolvable):
    """How the ops that maintain tables run. What an entry of a table says itself goes first."""

    # Dagster 1.11 makes a model of these fields, and adds a default to each that has one: it may not be a factory.
    tags: dict[str, Any] = Field(
        default={}, description="Tags of the ops, such as dagster-k8s/config; `op_tags` add to them."
    )
    pool: str | None = Field(default=None, description="The pool of tables that name none of their own.")
    retry_policy: Retries | None = Field(default=None, description="Which attempts a failed op gets.")

    @property
    def retries(self) -> dg.RetryPolicy | None:
        return None if self.retry_policy is None else self.retry_policy.policy

    def of(self, table: TableSettings) -> TableSettings:
        """The table, with these tags and this pool where it has none of its own."""
        return table.model_copy(update={"op_tags": {**self.tags, **table.op_tags}, "pool": table.pool or self.pool})
