"""Random histories of Lance tables, judged by Lance itself."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from effort import examples
from hypothesis import settings

from dv_maintenance.testing.backends import LanceBackend
from dv_maintenance.testing.stateful import HISTORIES, Judge, TableHistories

# Two kinds of tables, each with histories of its own.
SETTINGS = settings(HISTORIES, max_examples=examples(2))


def with_lance(place: Path, version: int) -> pa.Table:
    import lance

    dataset = lance.dataset(str(place), version=version)
    dataset.validate()
    return dataset.to_table()


class LanceHistories(TableHistories):
    judges: ClassVar[dict[str, Judge]] = {"Lance": with_lance}
    stable: ClassVar[bool] = False

    def backend(self, place: Path) -> LanceBackend:
        return LanceBackend(str(place), enable_stable_row_ids=self.stable)


class StableLanceHistories(LanceHistories):
    stable: ClassVar[bool] = True


TestLanceHistories = LanceHistories.TestCase
TestLanceHistories.settings = SETTINGS
TestStableLanceHistories = StableLanceHistories.TestCase
TestStableLanceHistories.settings = SETTINGS
