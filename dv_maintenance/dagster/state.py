"""What a search of folders found, kept in Dagster's defs state (Dagster 1.12 and newer).

``dg utils refresh-defs-state`` searches the folders and keeps the result; ``dg dev`` does so at each load. The location
and the processes of its runs load what is kept. If nothing is kept they search, as before Dagster 1.12.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields.

import asyncio
import logging
from abc import abstractmethod
from pathlib import Path

import dagster as dg
from dagster.components.component.state_backed_component import StateBackedComponent
from dagster.components.utils.defs_state import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from dagster.components.utils.project_paths import get_local_state_path
from pydantic import Field

from dv_maintenance.dagster.internals import guarded
from dv_maintenance.errors import DvMaintenanceError

with guarded():
    from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
    from dagster._utils.env import using_dagster_dev
    from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType

_log = logging.getLogger(__name__)


class ListedOnce(StateBackedComponent, dg.Model, dg.Resolvable):
    """A component whose folders are searched when its state is refreshed."""

    name: str
    defs_state: ResolvedDefsStateConfig = Field(
        default=DefsStateConfigArgs.local_filesystem(),
        description="Where Dagster keeps the tables that a search of the folders found.",
    )

    @abstractmethod
    def has_folders(self) -> bool: ...

    @abstractmethod
    def search(self) -> str: ...

    @property
    def defs_state_config(self) -> DefsStateConfig:
        key = self.defs_state.key or f"DvMaintainedTables[{self.name}]"  # the component's name when the key was chosen
        # Dagster's own refresh in `dg dev` fails the location where a listing fails; see build_defs.
        return DefsStateConfig(key=key, management_type=self.defs_state.management_type, refresh_if_dev=False)

    def write_state_to_path(self, state_path: Path) -> None:
        # Written only after the search: what was kept survives one that fails.
        state_path.write_text(self.search(), encoding="utf-8")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        if not self.has_folders() or not self._can_keep(context.project_root):
            return self.build_defs_from_state(context, None)
        loading = DefinitionsLoadContext.get()
        snapshots = self.defs_state.management_type == DefsStateManagementType.LEGACY_CODE_SERVER_SNAPSHOTS
        refreshes = self.defs_state.refresh_if_dev and using_dagster_dev() and not snapshots
        if refreshes and loading.load_type == DefinitionsLoadType.INITIALIZATION:
            try:
                version = asyncio.run(self.refresh_state(context.project_root))
                loading.add_defs_state_info(self.defs_state_config.key, version)
            except DvMaintenanceError as error:
                _log.warning("%s: using the tables of the last search, if any: %s", self.name, error)
        return super().build_defs(context)

    def _can_keep(self, project_root: Path) -> bool:
        """Whether there is a place for it. Images may be read-only, and a test has no project."""
        if self.defs_state.management_type != DefsStateManagementType.LOCAL_FILESYSTEM:
            return True
        try:
            get_local_state_path(self.defs_state_config.key, project_root)
        except (OSError, dg.DagsterError):
            return False
        return True
