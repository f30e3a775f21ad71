"""The retention that a vacuum applies: what its caller asks for, or the table's own."""

from __future__ import annotations

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.remedies import Remedy, setting


def applied_retention(
    asked: int | None,
    own: int,
    *,
    allow_short: bool,
    source: str,
    loses: str,
    lower: str,
    table: str,
    version: int | None = None,
) -> int:
    """The retention to apply, milliseconds.

    asked : the requested retention, milliseconds; ``None`` is the table's own.
    own : milliseconds.
    source : what determines ``own``.
    loses : who would lose what with a shorter one.
    lower : what the user can lower instead.

    Raises
    ------
    UsageError : ``asked`` is negative.
    RefusedError : ``asked`` is shorter than the table's own retention.
    """
    if asked is None:
        return own
    if asked < 0:
        raise UsageError("the retention is negative", table=table, next_step="give a duration such as 168h")
    if asked < own and not allow_short:
        from dv_maintenance.units import format_duration

        raise RefusedError(
            f"a retention of {format_duration(asked)} is shorter than the table's own {format_duration(own)} "
            f"({source}): {loses}",
            table=table,
            version=version,
            next_step=Remedy(
                f"give at least {{}}, lower {lower}, or, if nothing else uses the table now, give {{}}",
                (setting("retention", format_duration(own)), setting("allow_short_retention", True)),
            ),
        )
    return asked
