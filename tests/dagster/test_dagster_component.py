"""The component: what YAML becomes, and what its mistakes are called."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from packaging.version import Version
from support.places import ROOT

from dv_maintenance import DvMaintainedTablesComponent
from dv_maintenance.dagster import (
    DvTranslator,
    SparkResource,
    build_dv_assets,
    build_dv_job,
    build_dv_sensor,
    naming,
)
from dv_maintenance.errors import ConflictError, UsageError
from dv_maintenance.maintenance.health import health
from dv_maintenance.service.policies import Policy
from dv_maintenance.service.tables_file import Job, TableSettings, WatchConfig
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

MakeTable = Callable[..., TableSettings]
Load = Callable[..., tuple[DvMaintainedTablesComponent, dg.Definitions]]
TABLE = dg.AssetKey(["shop", "orders"])


class UpperCase(DvTranslator):
    def get_asset_key(self, table: TableSettings) -> dg.AssetKey:
        return dg.AssetKey(["lake", *table.name.upper().split("/")])

    def get_asset_spec(self, table: TableSettings, job: str | None, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.merge_attributes(metadata={"named": f"{table.name}: {job}"})


class Translated(DvMaintainedTablesComponent):
    def get_translator(self) -> DvTranslator:
        return UpperCase()


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as made:
        yield made


@pytest.fixture
def load(sandbox: DefsFolderSandbox) -> Load:
    """The component and its definitions from the attributes of a ``defs.yaml``, as text."""

    def build(attributes: str, component: type[DvMaintainedTablesComponent] = DvMaintainedTablesComponent) -> Any:
        path = sandbox.scaffold_component(component_cls=component, defs_path="lake")
        body = textwrap.indent(textwrap.dedent(attributes).strip(), "  ")
        name = (
            "dv_maintenance.DvMaintainedTablesComponent"
            if component is DvMaintainedTablesComponent
            else f"{__name__}.{component.__name__}"
        )
        (path / "defs.yaml").write_text(f"type: {name}\nattributes:\n{body}\n")
        with sandbox.load_component_and_build_defs(path) as loaded:
            return loaded

    return build


def test_the_old_name_loads_and_says_the_new_one(sandbox: DefsFolderSandbox, caplog: pytest.LogCaptureFixture) -> None:
    path = sandbox.scaffold_component(component_cls=DvMaintainedTablesComponent, defs_path="lake")
    (path / "defs.yaml").write_text(
        "type: dv_maintenance.DvMaintainedTables\n"
        "attributes: {tables: [{path: /lake/orders}], spark: {engine: local}}\n"
    )
    with sandbox.load_component_and_build_defs(path) as (_, defs):
        assert "orders" in keys(defs)
    assert "DvMaintainedTables is now called DvMaintainedTablesComponent" in caplog.text


def spec(defs: dg.Definitions, *path: str) -> dg.AssetSpec:
    return next(each for each in defs.resolve_all_asset_specs() if each.key == dg.AssetKey(path))


def keys(defs: dg.Definitions) -> set[str]:
    return {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}


def empty_table(path: Path) -> None:
    DeltaBuilder(str(path)).create(pa.schema([("id", pa.int64())]))


def test_everything_from_yaml(load: Load, make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    _, defs = load(
        f"""
        name: lake
        defaults:
          policy: {{max_deleted_ratio: 0.9, target_file_size: 64MiB, checks: {{deleted_ratio: {{warn: 0.6}}}}}}
          group_name: lake
          owners: ["team:platform"]
          tags: {{tier: gold, domain: sales}}
        tables:
          - path: {table.path}
            name: shop/orders
            policy: {{max_deleted_ratio: 0.1}}
            owners: ["orders@example.com"]
            tags: {{tier: silver}}
            jobs: [optimize]
          - path: s3://lake/not/there/yet
        schedule: {{cron: "0 5 * * *", timezone: Europe/Vienna}}
        sensor: {{every_seconds: 120}}
        spark: {{engine: local}}
        """
    )
    dg.Definitions.validate_loadable(defs)
    assert {"shop/orders", "shop/orders/dv/orders_optimize", "yet", "yet/dv/yet_vacuum"} <= keys(defs)
    for parts in (("shop", "orders"), ("shop", "orders", "dv", "orders_optimize")):
        shown = spec(defs, *parts)
        assert shown.group_name == "lake"
        assert shown.owners == ["orders@example.com"]
        assert shown.tags.items() >= {("tier", "silver"), ("domain", "sales")}
    assert spec(defs, "yet").owners == ["team:platform"]
    assert spec(defs, "yet").tags["tier"] == "gold"

    schedule, sensor = defs.resolve_schedule_def("lake_schedule"), defs.resolve_sensor_def("lake_sensor")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 5 * * *", "Europe/Vienna")
    assert sensor.minimum_interval_seconds == 120

    # It works with the settings of its own, not those of the defaults.
    job = defs.resolve_job_def("lake")
    selection = [TABLE, dg.AssetKey([*TABLE.path, "dv", f"{TABLE.path[-1]}_optimize"])]
    assert job.execute_in_process(instance=instance, asset_selection=selection).success
    assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0


def test_a_translation_in_yaml_changes_keys_and_specs(load: Load, make_table: MakeTable) -> None:
    table = make_table("orders")
    _, defs = load(
        f"""
        defaults: {{owners: ["team:platform"]}}
        tables: [{{path: {table.path}, name: sales/orders, tags: {{tier: gold}}}}]
        spark: {{engine: local}}
        translation:
          key: "lake/{{{{ table.name }}}}"
          group_name: "{{{{ table.name.split('/')[0] }}}}"
          tags: {{work: "{{{{ job or 'table' }}}}"}}
          metadata: {{runbook: "https://example.com/{{{{ table.name }}}}"}}
        """
    )
    dg.Definitions.validate_loadable(defs)
    optimize = ("lake", "sales", "orders", "dv", "orders_optimize")
    assert {"lake/sales/orders", "/".join(optimize)} <= keys(defs)
    for parts, work in ((("lake", "sales", "orders"), "table"), (optimize, "optimize")):
        shown = spec(defs, *parts)
        assert (shown.group_name, shown.owners) == ("sales", ["team:platform"])
        assert shown.tags.items() >= {("tier", "gold"), ("work", work)}
        assert shown.metadata["runbook"] == "https://example.com/sales/orders"


def test_what_runs_on_kubernetes_may_need(load: Load, make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    """Memory per table, a priority, the longest run, a pool that tables share: none of them could be set."""
    one, other = make_table("one"), make_table("other")
    _, defs = load(
        f"""
        name: lake
        defaults:
          pool: heavy
          op_tags: {{dagster-k8s/config: {{container_config: {{resources: {{limits: {{memory: 4Gi}}}}}}}}}}
          run_tags: {{dagster/max_runtime: "3600"}}
        tables:
          - {{path: {one.path}, run_tags: {{dagster/priority: "5"}}}}
          - {{path: {other.path}, pool: light, op_tags: {{team: sales}}}}
        schedule: {{cron: "0 3 * * *", vacuum_cron: "0 4 * * *", fsck_cron: "0 5 * * *"}}
        spark: {{engine: local}}
        """
    )
    graph = defs.resolve_asset_graph()
    ops = {name: graph.get(dg.AssetKey([name, "dv", f"{name}_optimize"])).assets_def.op for name in ("one", "other")}
    assert {name: op.pool for name, op in ops.items()} == {"one": "heavy", "other": "light"}
    assert '"memory": "4Gi"' in ops["one"].tags["dagster-k8s/config"]
    assert (
        ops["other"].tags.items()
        >= {"team": "sales", "dagster-k8s/config": ops["one"].tags["dagster-k8s/config"]}.items()
    )
    for job in ("lake", "lake_vacuum", "lake_fsck", "lake_plan"):
        assert defs.resolve_job_def(job).run_tags["dagster/max_runtime"] == "3600", job
    sensor = defs.resolve_sensor_def("lake_sensor")
    with dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def()) as context:
        asked = {each.tags["dv/table"]: each.tags for each in sensor.evaluate_tick(context).run_requests or ()}
    assert (asked["one"]["dagster/priority"], asked["one"]["dagster/max_runtime"]) == ("5", "3600")
    assert "dagster/priority" not in asked["other"]


@pytest.mark.parametrize(
    ("keys", "running"),
    [
        ("", set()),
        (
            "default_status: running",
            {"lake_sensor", "lake_folders_sensor", "lake_schedule", "lake_night_schedule", "lake_report_schedule"},
        ),
        ("sensor: {default_status: running}", {"lake_sensor", "lake_folders_sensor"}),
        (
            "default_status: running\nsensor: {default_status: stopped}",
            {"lake_schedule", "lake_night_schedule", "lake_report_schedule"},
        ),
    ],
)
def test_what_runs_without_a_click(load: Load, tmp_path: Path, keys: str, running: set[str]) -> None:
    empty_table(tmp_path / "lake" / "orders")
    lines = [
        "name: lake",
        f"folders: [{{path: {tmp_path / 'lake'}}}]",
        'schedule: {cron: "0 3 * * *"}',
        'report: {cron: "0 7 * * *"}',
        'window: {start: "01:00", length: 1h}',
        "spark: {engine: local}",
        *keys.splitlines(),
    ]
    _, defs = load("\n".join(lines))
    every = [*(defs.sensors or ()), *(defs.schedules or ())]
    found = {each.name for each in every if each.default_status.value == "RUNNING"}  # type: ignore[union-attr]
    assert found == running


def test_the_report_belongs_where_its_tables_do(load: Load, tmp_path: Path) -> None:
    _, defs = load(
        """
        name: lake
        defaults: {group_name: sales, owners: ["team:platform"], tags: {domain: sales}}
        tables: [{path: /orders}]
        report: {}
        spark: {engine: local}
        """
    )
    shown = spec(defs, "lake", "lake_report")
    assert (shown.group_name, shown.owners, shown.tags["domain"]) == ("sales", ["team:platform"], "sales")


def test_a_table_on_disk_shows_its_format(load: Load, tmp_path: Path) -> None:
    """Only those with ``format`` did. Nothing is opened, and nothing elsewhere is asked."""
    empty_table(tmp_path / "orders")
    _, defs = load(
        f"""
        tables: [{{path: {tmp_path / "orders"}}}, {{path: {tmp_path / "later"}}}, {{path: s3://nowhere/at_all}}]
        spark: {{engine: local}}
        """
    )
    kinds = {name: spec(defs, name).kinds for name in ("orders", "later", "at_all")}
    assert kinds == {"orders": {"deltalake"}, "later": set(), "at_all": set()}


def test_fields_have_plain_defaults() -> None:
    """Dagster 1.11 can't derive the model of a component with a factory in it."""
    fields = DvMaintainedTablesComponent.model_fields
    assert fields
    assert not [name for name, field in fields.items() if field.default_factory is not None]


def test_vacuums_have_a_schedule_of_their_own_where_that_is_asked_for(load: Load) -> None:
    _, defs = load(
        """
        name: lake
        tables:
        - {path: s3://lake/orders, jobs: [optimize, vacuum, manifest]}
        - {path: docs, format: lance}
        - {path: p.db/t, format: paimon}
        schedule: {cron: "0 3 * * *", vacuum_cron: "0 5 * * *", fsck_cron: "0 6 * * 0", timezone: Europe/Vienna}
        spark: {engine: local}
        """
    )
    dg.Definitions.validate_loadable(defs)
    jobs = {
        schedule.name: (schedule.job_name, schedule.cron_schedule, schedule.execution_timezone)
        for schedule in defs.get_repository_def().schedule_defs
    }
    assert jobs == {
        "lake_schedule": ("lake", "0 3 * * *", "Europe/Vienna"),
        "lake_vacuum_schedule": ("lake_vacuum", "0 5 * * *", "Europe/Vienna"),
        "lake_fsck_schedule": ("lake_fsck", "0 6 * * 0", "Europe/Vienna"),
    }
    nodes = {
        name: {node.name for node in defs.resolve_job_def(name).graph.iterate_op_defs()}
        for name in ("lake", "lake_vacuum", "lake_fsck")
    }
    vacuums = {name for name in nodes["lake_vacuum"] if "checks" not in name}
    assert vacuums == {"orders__dv_vacuum", "docs__dv_vacuum", "t__dv_vacuum"}
    assert not {name for name in nodes["lake"] if name.endswith("vacuum")}
    assert nodes["lake_fsck"] == {"orders__dv_observe", "docs__dv_observe", "t__dv_observe"}
    checks = {name: defs.resolve_job_def(name).asset_layer.asset_graph.asset_check_keys for name in nodes}
    assert [key.name for key in checks["lake_fsck"]] == ["fsck"] * 3
    assert "readable" in {key.name for key in checks["lake"]}
    assert "fsck" not in {key.name for key in checks["lake"] | checks["lake_vacuum"]}
    assert {"orders__dv_manifest", "docs__dv_optimize", "docs__dv_observe"} <= nodes["lake"]
    assert spec(defs, "docs").kinds == {"lance"}
    assert spec(defs, "t").kinds == {"paimon"}


def test_a_window_has_a_job_and_a_schedule_of_its_own(load: Load) -> None:
    _, defs = load(
        """
        name: lake
        window: {start: 22:30, length: 1h, timezone: Europe/Berlin, days: [mon, fri]}
        budget: 30m
        tables: [{path: s3://lake/orders}]
        spark: {engine: local}
        """
    )
    assert defs.resolve_job_def("lake_night")
    schedule = defs.resolve_schedule_def("lake_night_schedule")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 22 * * mon,fri", "Europe/Berlin")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED


def test_a_report_is_one_asset_with_a_schedule_of_its_own(load: Load) -> None:
    _, defs = load(
        """
        name: lake
        report: {every_seconds: 60, cron: "0 7 * * *", timezone: Europe/Berlin}
        tables: [{path: s3://lake/orders}]
        spark: {engine: local}
        """
    )
    report = dg.AssetKey(["lake", "lake_report"])
    assert spec(defs, "lake", "lake_report").key == report
    schedule = defs.resolve_schedule_def("lake_report_schedule")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 7 * * *", "Europe/Berlin")
    selected = defs.resolve_sensor_def("lake_sensor").asset_selection
    assert selected is not None
    assert report in selected.resolve(defs.resolve_asset_graph())


def test_a_resource_of_the_location_in_the_place_of_spark(
    load: Load, make_table: MakeTable, instance: dg.DagsterInstance
) -> None:
    """By its own name, as dagster-pyspark's PySparkResource is found under ``pyspark`` (test_dagster_spark.py)."""
    table = make_table()
    _, ours = load(f"tables: [{{name: shop/orders, path: {table.path}}}]\nspark: {{resource: pyspark}}")
    theirs = dg.Definitions(resources={"pyspark": SparkResource(engine="local")}, executor=dg.in_process_executor)
    result = (
        dg.Definitions.merge(ours, theirs)
        .resolve_job_def("dv_maintenance")
        .execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey(["shop", "orders", "dv", "orders_optimize"])]
        )
    )
    assert result.success
    assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="'pyspark'"):
        dg.Definitions.validate_loadable(ours)


def test_only_what_is_asked_for(load: Load) -> None:
    _, defs = load("tables: [{path: s3://lake/orders}]\nsensor: null")
    assert defs.resources == {}
    assert not defs.schedules
    assert not defs.sensors


def test_folders(load: Load, tmp_path: Path) -> None:
    for name in ("lake/raw/a", "lake/raw/deep/b", "lake/raw/scratch/c", "lake/raw/_hidden/d", "lake/raw/a/day=1/e"):
        empty_table(tmp_path / name)
    _, defs = load(
        f"""
        spark: {{engine: local}}
        tables: [{{path: {tmp_path}/lake/raw/deep/b, name: special, group_name: own}}]
        folders:
          - {{path: {tmp_path}/lake/raw, name: raw, exclude: ["scratch/*"], group_name: found, jobs: [optimize]}}
        """
    )
    assert {key for key in keys(defs) if "/dv/" not in key} == {"special", "raw/a"}
    assert spec(defs, "raw", "a").group_name == "found"
    assert spec(defs, "special", "dv", "special_optimize").group_name == "own"


def test_partitions(load: Load) -> None:
    _, defs = load(
        """
        tables:
          - {path: s3://lake/a, partitions: [{name: day, every: day, start: 2026-01-01}]}
          - {path: s3://lake/b, partitions: region}
        schedule: {cron: "0 3 * * *"}
        spark: {engine: local}
        """
    )
    dg.Definitions.validate_loadable(defs)
    kinds = [type(spec(defs, name, "dv", f"{name}_optimize").partitions_def) for name in "ab"]
    assert kinds == [dg.DailyPartitionsDefinition, dg.DynamicPartitionsDefinition]
    schedule = defs.resolve_schedule_def("dv_maintenance_backfills_schedule")
    assert (schedule.job_name, schedule.cron_schedule) == ("dv_maintenance_backfills", "0 3 * * *")


def test_relative_paths_start_at_the_yaml_file(load: Load, sandbox: DefsFolderSandbox) -> None:
    empty_table(sandbox.defs_folder_path / "lake" / "tables" / "orders")
    _, defs = load(
        "tables: [{path: tables/orders, name: one}]\nfolders: [{path: tables, name: all}]\nspark: {engine: local}"
    )
    assert {key for key in keys(defs) if "/dv/" not in key} == {"one"}


def test_secrets_come_from_the_environment_and_stay_there(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVM_TEST_SECRET", "hunter2")
    component, _ = load(
        """
        defaults: {storage_options: {aws_region: x, key: "{{ env.DVM_TEST_SECRET }}", other: "${DVM_TEST_SECRET}"}}
        tables: [{path: s3://lake/orders, storage_options: {aws_region: eu-central-1}}]
        """
    )
    assert "hunter2" not in repr(component)
    assert component.defaults["storage_options"] == {
        "aws_region": "x",
        "key": "hunter2",
        "other": "${DVM_TEST_SECRET}",
    }


@pytest.mark.parametrize(
    ("attributes", "complaint", "line"),
    [
        ("tables: [{path: t}]\nwindow: {start: '25:00', length: 1h}", "window.start: not a time of day", 4),
        ("tables: [{path: x}, {path: y/x}]", "two tables are called 'x'", 3),
        ("tables:\n- path: x\n  owners: [nonsense]", "(?i)owner", 4),
        ("tables:\n- path: x\n  storage_options: {k: '${DVM_NOT_SET}'}", "DVM_NOT_SET is not set", 5),
        ("tables:\n- path: x\nfolders:\n- path: none", "the folder contains no table", 6),
        ("sensor: null", "name some under 'tables'", 2),
        ("tables:\n- path: x\n  policy: {max_deleted_ratio: 2}", "less than or equal to 1", 5),
        ("tables:\n- path: x\n  policy: {max_tsks: 2}", r"tables\.0\.policy.max_tsks.* did you mean max_tasks", 5),
        ("tables:\n- pth: x", r"\.0\.pth.* did you mean path", 4),
        ("tables: [{path: x}]\nschedule: {crn: 0 3 * * *}", r"schedule\.crn.* did you mean cron", 4),
        ("tables: []\nfolders: []", "name some under 'tables'", 2),
        ("tables: [{path: x}]\nspark: {resource: pyspark, master: local}", "its own session: omit master", 4),
        ("tables: [{path: x}]\nop: {tag: {}}", "tag", 4),
        ("tables: [{path: x}]\nop: {retry_policy: {backoff: slow}}", "'linear' or 'exponential'", 4),
        ("tables: [{path: x}]\nop: {retry_policy: {max_retries: -1}}", "less than 0", 4),
    ],
)
def test_mistakes_are_named_with_file_and_line(load: Load, attributes: str, complaint: str, line: int) -> None:
    with pytest.raises(Exception) as caught:  # Dagster wraps it, and prints the whole chain
        load(attributes)
    said, error = "", caught.value
    while error is not None:
        said, error = f"{said}\n{error}", error.__cause__ or error.__context__
    assert re.search(complaint, said), said
    assert set(re.findall(r"defs\.yaml(?: line |:)(\d+)", said)) == {str(line)}, said


def test_a_subclass_changes_keys_and_specs(load: Load, make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    _, defs = load(
        f"tables: [{{path: {table.path}, name: shop/orders, tags: {{a: b}}}}]\nspark: {{engine: local}}", Translated
    )
    optimize = spec(defs, "lake", "SHOP", "ORDERS", "dv", "ORDERS_optimize")
    assert optimize.tags["a"] == "b"
    assert optimize.metadata["named"] == "lake/SHOP/ORDERS: optimize"
    # The sensor asks for the assets that there are.
    context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
    (request,) = defs.resolve_sensor_def("dv_maintenance_sensor").evaluate_tick(context).run_requests or ()
    assert optimize.key in (request.asset_selection or ())


def test_keys_that_a_translator_makes_alike_are_refused() -> None:
    class Alike(DvTranslator):
        def get_asset_key(self, table: TableSettings) -> dg.AssetKey:
            return dg.AssetKey("one")

    tables = [TableSettings(name=name, path=name) for name in "ab"]
    with pytest.raises(Exception, match="b and a have the same key one"):
        Alike().tables(tables)


def test_a_translator_may_keep_other_names_of_jobs() -> None:
    """As they were before they ended in the table's name: Dagster's history is kept by key."""

    class Before(DvTranslator):
        def get_job_name(self, table: TableSettings, job: Job) -> str:
            return job

    translator = Before()
    tables = translator.tables([TableSettings(name="shop/orders", path="x")])
    assets = translator.assets(tables, build_dv_assets(tables))
    sensor = build_dv_sensor(tables)
    defs = dg.Definitions(assets, sensors=[sensor], jobs=[build_dv_job(tables)], resources={"spark": SparkResource()})
    dg.Definitions.validate_loadable(defs)
    assert keys(defs) == {"shop/orders", "shop/orders/dv/optimize", "shop/orders/dv/vacuum"}
    narrowed = tables[0].model_copy(update={"jobs": ("vacuum",)})
    assert naming.job_key(narrowed, "vacuum").to_user_string() == "shop/orders/dv/vacuum"


@pytest.mark.parametrize("scaffold_format", ["yaml", "python"])
def test_what_the_scaffolder_writes_loads(sandbox: DefsFolderSandbox, scaffold_format: Any) -> None:
    path = sandbox.scaffold_component(component_cls=DvMaintainedTablesComponent, scaffold_format=scaffold_format)
    with sandbox.build_all_defs() as defs:
        assert "orders/dv/orders_vacuum" in keys(defs)
        dg.Definitions.validate_loadable(defs)
    assert (path / ("defs.yaml" if scaffold_format == "yaml" else "component.py")).exists()


def test_importing_the_package_imports_no_dagster() -> None:
    script = "import sys, dv_maintenance; assert not {'dagster', 'pydantic', 'pyarrow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(ImportError):
        exec("from dv_maintenance import Nothing")


def test_loading_says_what_is_probably_a_mistake(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    """`dg check defs` shows what Dagster's own logger says, and nothing else."""
    load("{tables: [{path: /a}, {path: /b}], defaults: {policy: {retention: 1h}}, spark: {engine: local}}")
    (record,) = [each for each in caplog.records if each.name.startswith("dagster")]
    assert "retention 1h is shorter than Delta's default of 7d" in record.getMessage()
    assert "defs.yaml line 3" in record.getMessage()


@pytest.fixture
def schema_errors() -> Callable[[dict[str, Any]], list[tuple[list[Any], str]]]:
    """What ``dg check yaml`` says of attributes: places and messages."""
    from jsonschema import Draft202012Validator

    model = DvMaintainedTablesComponent.get_model_cls()
    assert model is not None
    validator = Draft202012Validator(model.model_json_schema())
    return lambda attributes: [(list(each.absolute_path), each.message) for each in validator.iter_errors(attributes)]


def test_the_schema_knows_deadlines_that_can_not_be_kept(
    schema_errors: Callable[[dict[str, Any]], list[tuple[list[Any], str]]],
) -> None:
    """`dg check yaml` passed them all."""

    def said(policy: dict[str, Any], **more: Any) -> list[tuple[list[Any], str]]:
        return schema_errors({"tables": [{"path": "a"}, {"path": "b", "policy": policy}], **more})

    ((place, message),) = said({"retention": "1w", "erase_within": "10d"})
    assert place == ["tables", 1, "policy", "erase_within"]
    assert "more than 10d, which is what a retention of 7d and a daily vacuum and a margin of 2d take" in message
    assert said({"retention": "7d", "erase_within": "11d"}) == []
    assert said({"erase_within": "72h"})
    often = {"erase_within": "3d", "vacuum_every": "1h"}
    assert said(often) == said({"erase_within": "3d"}, defaults={"policy": {"vacuum_every": "1h"}}) == []
    assert said({**often, "retention": "1d"})
    assert schema_errors({"defaults": {"policy": {"erase_within": "1d"}}, "folders": [{"path": "a"}]})
    assert schema_errors({"folders": [{"path": "a", "policy": {"erase_within": "1d"}}]})
    assert said({"retention": "{{ env.KEPT }}", "erase_within": "9d"}) == []
    # Sound: it refuses nothing that a policy accepts. What falls between two rungs, loading finds.
    found, missed = 0, 0
    for kept in (*range(0, 40, 3), 99, 400):
        for within in (*range(1, 50, 2), 98, 103, 410):
            for unit in "dh":
                policy = {"retention": f"{kept}{unit}", "erase_within": f"{within}d"}
                try:
                    Policy.from_mapping(policy)
                except UsageError:
                    found, missed = found + 1, missed + (not said(policy))
                else:
                    assert said(policy) == [], policy
    assert missed < found / 5


def test_the_schema_names_single_keys(
    schema_errors: Callable[[dict[str, Any]], list[tuple[list[Any], str]]],
) -> None:
    """`dg check yaml` said of the whole list that it "is not valid under any of the given schemas"."""
    wrong = schema_errors
    tables = [{"path": "a", "job": ["vacuum"], "policy": {"retention": 7}}, {"path": "b", "jobs": ["compact"]}]
    found = wrong({"tables": tables, "schedule": {"crn": "0 3 * * *"}, "defaults": "none"})
    assert (["tables", 0], "Additional properties are not allowed ('job' was unexpected)") in found
    assert (["tables", 1, "jobs", 0], "'compact' is not one of ['optimize', 'vacuum', 'manifest']") in found
    assert (["schedule"], "'cron' is a required property") in found
    assert [path for path, _ in found if path == ["defaults"]], "text is a value only as a template"
    op = {"tags": {"team": "lake"}, "retry_policy": {"max_retries": "{{ env.TRIES }}", "backoff": "linear"}}
    assert wrong({"tables": [{"path": "a"}], "op": op}) == []
    assert [path for path, _ in wrong({"tables": [{"path": "a"}], "op": {"retry_policy": {"delays": 5}}})] == [
        ["op", "retry_policy"]
    ]
    assert wrong({"tables": "{{ env.TABLES }}", "schedule": None, "defaults": "{{ shared }}"}) == []
    texts = {"target_file_size": "512MiB", "retention": "168h", "partitions": ["a=1"]}
    assert wrong({"tables": [{"path": "a"}], "defaults": {"policy": texts}}) == []
    assert wrong({"tables": [{"path": "a", "partitions": "day"}, {"path": "b", "partitions": ["day", "shop"]}]}) == []


def test_the_schema_has_every_key_of_a_tables_file_with_its_meaning() -> None:
    model = DvMaintainedTablesComponent.get_model_cls()
    assert model is not None
    schema, own = model.model_json_schema(), WatchConfig.model_json_schema()
    assert schema["properties"].keys() - own["properties"].keys() <= {"defs_state", "op", "translation"}
    of_parts = {"": schema, **{name: schema["$defs"][name] for name in own["$defs"]}}
    for name in ("", "Entry", "TableSettings", "TablesFolder"):
        known = (own["$defs"][name] if name else own)["properties"].keys()
        keys = of_parts[name]["properties"]
        assert known <= keys.keys()
        assert not [key for key in known if "description" not in keys[key]], name


def test_op_says_how_the_ops_run(
    load: Load, make_table: MakeTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVM_TEST_RETRIES", "4")
    one, other = make_table("one"), make_table("other")
    _, defs = load(
        f"""
        name: lake
        op:
          tags: {{dagster-k8s/config: {{container_config: {{image: lake}}}}, team: lake}}
          pool: heavy
          retry_policy: {{max_retries: "{{{{ env.DVM_TEST_RETRIES }}}}", delay: 0.01, backoff: exponential}}
        tables:
          - {{path: {one.path}}}
          - {{path: {other.path}, pool: light, op_tags: {{team: sales}}}}
        window: {{start: "01:00", length: 3h}}
        spark: {{engine: local}}
        """
    )
    graph = defs.resolve_asset_graph()
    for job in ("optimize", "vacuum"):
        ops = {name: graph.get(dg.AssetKey([name, "dv", f"{name}_{job}"])).assets_def.op for name in ("one", "other")}
        assert {name: (op.pool, op.tags["team"]) for name, op in ops.items()} == {
            "one": ("heavy", "lake"),
            "other": ("light", "sales"),
        }
        assert all('"image": "lake"' in op.tags["dagster-k8s/config"] for op in ops.values())
        assert {op.retry_policy for op in ops.values()} == {
            dg.RetryPolicy(max_retries=4, delay=0.01, backoff=dg.Backoff.EXPONENTIAL)
        }
    (night,) = defs.resolve_job_def("lake_night").nodes
    assert (night.definition.tags["team"], night.definition.retry_policy.max_retries) == ("lake", 4)

    # A real run makes that many attempts.
    tries: list[int] = []

    def lost(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise ConflictError("lost")

    monkeypatch.setattr("dv_maintenance.service.verbs.optimize", lost)
    key = dg.AssetKey(["one", "dv", "one_optimize"])
    job = defs.get_implicit_global_asset_job_def()
    assert not job.execute_in_process(instance=instance, asset_selection=[key], raise_on_error=False).success
    assert len(tries) == 5


def test_templates_anywhere_and_text_that_only_looks_like_one(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster reads "1.10" as a number: partition and tag were "1.1". In a policy, templates were refused."""
    monkeypatch.setenv("DVM_TEST_RATIO", "0.3")
    component, _ = load(
        """
        tables:
        - path: s3://lake/orders
          name: "2026"
          policy: {max_deleted_ratio: "{{ env.DVM_TEST_RATIO }}"}
          partitions: {name: release, values: ["1.10"]}
          tags: {release: "1.10"}
        """
    )
    (table,) = WatchConfig.of(component._document()).tables
    assert (table.name, table.policy.max_deleted_ratio, table.tags) == ("2026", 0.3, {"release": "1.10"})
    assert table.partitions is not None
    assert table.partitions.columns[0].values == ("1.10",)


class Owned(DvMaintainedTablesComponent):
    team: str = "sales"


def test_a_subclass_may_have_keys_of_its_own(load: Load) -> None:
    component, _ = load("tables: [{path: s3://lake/orders}]\nteam: shop", Owned)
    assert component.team == "shop"


@pytest.mark.skipif(Version(dg.__version__) < Version("1.12"), reason="templates have dg from Dagster 1.12 on")
def test_the_documentations_condition_requests_a_run_at_its_hour(
    sandbox: DefsFolderSandbox, instance: dg.DagsterInstance
) -> None:
    page = (ROOT / "docs" / "guides" / "many-tables.md").read_text()
    (example,) = (each for each in page.split("```yaml\n")[1:] if "post_processing" in each.split("```")[0])
    path = sandbox.scaffold_component(component_cls=DvMaintainedTablesComponent, defs_path="lake")
    (path / "defs.yaml").write_text(example.split("```")[0])
    with sandbox.load_component_and_build_defs(path) as (_, defs):
        assert spec(defs, "orders", "dv", "orders_optimize").metadata["runbook"] == "https://wiki.example.com/lake"
        cursor, asked = None, []
        for minute in (-1, 1, 2):
            at = datetime(2026, 11, 20, 3, tzinfo=UTC) + timedelta(minutes=minute)
            result = dg.evaluate_automation_conditions(defs, instance, cursor=cursor, evaluation_time=at)
            cursor = result.cursor
            asked.append([each.key.to_user_string() for each in result.results if each.true_subset.size])
    assert asked == [[], ["orders/dv/orders_optimize"], []]
