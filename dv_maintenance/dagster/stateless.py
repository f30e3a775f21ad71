"""The component's base class before Dagster 1.12: every load searches the folders."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields.

from abc import abstractmethod
from pathlib import Path

import dagster as dg


class ListedAtEachLoad(dg.Component, dg.Model, dg.Resolvable):
    """A component that keeps nothing between two loads."""

    @abstractmethod
    def build_defs_from_state(self, context: dg.ComponentLoadContext, state_path: Path | None) -> dg.Definitions: ...

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return self.build_defs_from_state(context, None)
