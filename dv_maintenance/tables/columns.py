"""The columns that a reader asks for, checked in the same way for every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from dv_maintenance.errors import UsageError
from dv_maintenance.tables.model import Snapshot


def check_columns(columns: Sequence[str], names: Collection[str], snapshot: Snapshot) -> None:
    """Raises UsageError: a column is not among the ``names``, or is named twice."""
    wrong = [name for name in columns if name not in names]
    wrong += [name for name, times in Counter(columns).items() if times > 1]
    if wrong:
        raise UsageError(
            f"no column {wrong[0]!r} in the table" if wrong[0] not in names else f"column {wrong[0]!r} is named twice",
            table=snapshot.table,
            version=snapshot.version,
            next_step=f"choose from {', '.join(names)}",
        )
