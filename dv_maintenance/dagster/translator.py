"""Customization of the names and specs of tables and their maintenance in Dagster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.internals import public
from dv_maintenance.errors import UsageError
from dv_maintenance.service.settings import JOBS

if TYPE_CHECKING:
    from dv_maintenance.service.tables_file import Job, TableSettings

# Of a spec, from it and from the table (as its settings name it) with the job that it is of, if any.
Translation: TypeAlias = "Callable[[dg.AssetSpec, tuple[TableSettings, Job | None]], dg.AssetSpec]"


@public
class DvTranslator:
    """Subclass it and override its methods.

    Then build everything from ``tables``, and pass the assets through ``assets``::

        tables = translator.tables(tables)
        assets = translator.assets(tables, build_dv_assets(tables))
    """

    @public
    def get_asset_key(self, table: TableSettings) -> dg.AssetKey:
        """The key of a table. Its maintenance assets are always below it."""
        return naming.table_key(table)

    @public
    def get_job_name(self, table: TableSettings, job: Job) -> str:
        """The last part of the key of a maintenance asset, such as ``orders_optimize``. ``return job`` gives the keys
        that end in the job alone: ``orders/dv/optimize``.
        """
        return naming.job_key(table, job).path[-1]

    @public
    def get_asset_spec(self, table: TableSettings, job: Job | None, spec: dg.AssetSpec) -> dg.AssetSpec:
        """The spec to use for a table (``job`` is ``None``) or for one of its maintenance assets: group, owners, tags,
        metadata, description. Do not change the key here: see ``get_asset_key``. ``table.name`` is the key.
        """
        del table, job
        return spec

    @public
    def tables(self, tables: Iterable[TableSettings]) -> list[TableSettings]:
        """The tables, named by their keys: assets, sensors, jobs and checks use these names.

        Raises
        ------
        UsageError
            two tables have one key.
        """
        keys: dict[dg.AssetKey, TableSettings] = {}
        for table in tables:
            key = self.get_asset_key(table)
            if key in keys:
                raise UsageError(
                    f"{table.name} and {keys[key].name} have the same key {key.to_user_string()}",
                    next_step="return different keys from get_asset_key",
                )
            keys[key] = table
        named = [table.model_copy(update={"name": "/".join(key.path)}) for key, table in keys.items()]
        return [table.with_job_names({job: self.get_job_name(table, job) for job in JOBS}) for table in named]

    @public
    def assets(
        self, tables: Iterable[TableSettings], assets: Iterable[dg.AssetsDefinition]
    ) -> list[dg.AssetsDefinition]:
        """The assets that ``build_dv_assets`` made of these tables, with this translator's specs."""
        if type(self).get_asset_spec is DvTranslator.get_asset_spec:
            return list(assets)
        places: dict[dg.AssetKey, tuple[TableSettings, Job | None]] = {}
        for table in tables:
            places[naming.table_key(table)] = (table, None)
            places |= {naming.job_key(table, job): (table, job) for job in JOBS}

        def translate(spec: dg.AssetSpec) -> dg.AssetSpec:
            return self.get_asset_spec(*places[spec.key], spec) if spec.key in places else spec

        return [asset.map_asset_specs(translate) for asset in assets]


class WrittenTranslator(DvTranslator):
    """What ``translation:`` in a component's YAML says, after the component's own translator."""

    def __init__(self, before: DvTranslator, translation: Translation) -> None:
        self._before = before
        self._translation = translation
        self._as_written: dict[str, TableSettings] = {}

    def get_asset_key(self, table: TableSettings) -> dg.AssetKey:
        key = self._translation(dg.AssetSpec(self._before.get_asset_key(table)), (table, None)).key
        self._as_written["/".join(key.path)] = table
        return key

    def get_job_name(self, table: TableSettings, job: Job) -> str:
        return self._before.get_job_name(table, job)

    def get_asset_spec(self, table: TableSettings, job: Job | None, spec: dg.AssetSpec) -> dg.AssetSpec:
        spec = self._before.get_asset_spec(table, job, spec)
        translated = self._translation(spec, (self._as_written[table.name], job))
        # The keys of a table's jobs follow from its own.
        return translated.replace_attributes(key=spec.key)
