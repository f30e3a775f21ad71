"""What the documentation shows must work: commands parse, files load, Python runs, quoted messages and links exist.

A block says in its first line which file it is (``# defs.yaml``); by that it is known how to hold it to its word.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from support.pages import FEATURES, matrix
from support.places import ROOT

from dv_maintenance import DvMaintainedTablesComponent
from dv_maintenance.catalogs import configured
from dv_maintenance.cli import main
from dv_maintenance.cli.parser import parse
from dv_maintenance.dagster import build_dv_assets, build_dv_checks
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UnsupportedFeatureError
from dv_maintenance.maintenance.checks import check_table
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.storage import Storage
from dv_maintenance.tables import capabilities, open_table
from dv_maintenance.tables.delta.features import check_readable, check_writable
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Protocol
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.tables.registry import Location, formats
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
# What a shell, an installer or make does is not ours to test.
FOREIGN = {"airflow", "cd", "export", "make", "mkdir", "pip", "pytest", "sed", "uv", "uvx"}


def fenced(page: Path, language: str) -> list[str]:
    return [
        match[1] for match in re.finditer(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]


def blocks(language: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{page.name}-{number}")
        for page in PAGES
        for number, text in enumerate(fenced(page, language))
    ]


def commands(page: Path) -> Iterator[list[str]]:
    """Each command of the page's console blocks in words, without environment variables and ``uv run``."""
    for text in fenced(page, "console"):
        for line in text.splitlines():
            assert line.startswith("$ "), f"{page.name}: {line}"
            words = shlex.split(line[2:], comments=True)
            while "=" in words[0]:
                words = words[1:]
            yield words[2:] if words[:2] == ["uv", "run"] else words


# -- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    for program, *words in commands(page):
        if program == "dvm":
            assert parse(words).verb_name == words[0]
        elif program in {"dg", "dagster"}:
            parse_click(program, words)
        elif program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        else:
            assert program in FOREIGN or words == ["make_table.py"], program


@cache
def cli_of(program: str) -> Any:
    from dagster._cli import create_dagster_cli
    from dagster_dg_cli.cli import create_dg_cli

    return create_dg_cli() if program == "dg" else create_dagster_cli()


def parse_click(program: str, words: list[str]) -> None:
    command = cli_of(program)
    context = click.Context(command, info_name=program)
    while isinstance(command, click.Group):
        if words[:2] == ["scaffold", "defs"]:
            # Its commands are the components that it finds: test_dagster_component.py runs it.
            assert words[2] == "dv_maintenance.DvMaintainedTablesComponent"
            return
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, f"{program} has no command {name}"
    command.make_context(name, words, parent=context)


# -- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_loads(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = text.splitlines()[0].removeprefix("# ").split(";")[0].rpartition("/")[2]
    file = tmp_path / name
    file.write_text(text)
    for secret in ("LAKE_KEY", "LAKE_SECRET", "UC_TOKEN"):
        monkeypatch.setenv(secret, "secret")
    monkeypatch.setattr("dv_maintenance.catalogs.listed", lambda *_: [FoundTable("raw_t.raw_t", "delta")])
    if name == "policy.yaml":
        assert Policy.load(str(file)) == Policy(), "the page shows the defaults"
        assert set(yaml.safe_load(text)) == set(Policy.model_fields), "all of them"
    elif name.endswith("-policy.yaml"):
        assert Policy.load(str(file)) != Policy(), "an example of some keys"
    elif name == "tables.yaml":
        load_tables(WatchConfig.load(str(file)), len(yaml.safe_load(text)["tables"]))
    elif name == "defs.yaml":
        for document in yaml.safe_load_all(text):
            assert document["type"] == "dv_maintenance.DvMaintainedTablesComponent"
            component = DvMaintainedTablesComponent.from_attributes_dict(attributes=document["attributes"])
            body = {key: each for key, each in document["attributes"].items() if key not in {"op", "translation"}} | {
                "folders": []
            }
            load_tables(WatchConfig.model_validate(body), len(component.tables or ()))
    elif name == "catalogs.yaml":
        for secret in re.findall(r"\$\{(\w+)\}", text):
            monkeypatch.setenv(secret, "secret")
        monkeypatch.setenv("DVM_CATALOGS", str(file))
        assert configured()
    elif name == "run.yaml":
        import dagster as dg

        resources = {"spark": dg.ResourceDefinition.none_resource()}
        defs = dg.Definitions(build_dv_assets([TableSettings(name="orders", path="x")]), resources=resources)
        dg.validate_run_config(defs.resolve_implicit_global_asset_job_def(), yaml.safe_load(text))
    elif name == "values.yaml":
        assert {"airflowVersion", "images", "triggerer"} <= yaml.safe_load(text).keys(), "of Airflow's Helm chart"
    else:
        assert name == "dagster.yaml"
        from dagster._core.instance.config import dagster_instance_config

        dagster_instance_config(str(tmp_path))


def load_tables(config: WatchConfig, count: int) -> None:
    """As many as are listed, and Dagster takes what their settings make."""
    import dagster as dg

    assert len(config.tables) == count + len(config.folders), "a folder has one"
    owned = [dg.AssetSpec(table.name) for table in config.tables if not table.observe]
    defs = dg.Definitions(
        [*build_dv_assets(config.tables), *owned],
        asset_checks=build_dv_checks(config.tables),
        resources={"spark": dg.ResourceDefinition.none_resource()},
    )
    dg.Definitions.validate_loadable(defs)


# Blocks for Airflow begin with the name of their DAG file: tests/airflow runs them.
@pytest.mark.parametrize("text", [each for each in blocks("python") if not each.values[0].startswith("# dags/")])
def test_python_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Engines of the page use the session that is active."""
    from dagster.components.definitions import LazyDefinitions

    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(text, "docs", "exec"), names)
    if not text.startswith("# src/"):  # a project's own files: test_the_first_table
        for made in names.values():
            if isinstance(made, LazyDefinitions):
                made()


@pytest.mark.parametrize("text", blocks("graphql"))
def test_graphql_fits_the_page_s_schema(text: str) -> None:
    from dagster_graphql.schema import create_schema
    from graphql import parse as parse_graphql
    from graphql import validate

    assert validate(create_schema().graphql_schema, parse_graphql(text)) == []


def test_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {"python": project["requires-python"]} | dict(
        re.fullmatch(r"([a-z-]+)(.*)", each).groups()
        for each in [
            *project["dependencies"],
            *extras["dagster"],
            *extras["lance"],
            *extras["paimon"],
            *extras["iceberg"],
            *extras["orc"],
            *extras["vortex"],
        ]
    )
    page = (DOCS / "start" / "install.md").read_text()
    shown = dict(re.findall(r"^\| `([a-z-]+)` \| `(.*?)` \|", page, re.MULTILINE))
    assert shown.keys() == {"python", "pyspark", "dagster", "pylance", "fastavro", "pyiceberg", "pyorc", "vortex-data"}
    assert shown.items() <= wanted.items()


# -- the first table ---------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_the_first_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The page from top to bottom, but without installing anything, Spark, and the web page: test_first_day.py."""
    import dagster as dg

    page = DOCS / "start" / "first-table.md"
    package = tmp_path / "src" / "lakehouse"
    (package / "defs").mkdir(parents=True)
    for module in (package, package / "defs"):
        (module / "__init__.py").touch()
    # What `create-dagster` writes, in short.
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "lakehouse"\nversion = "0"\n'
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "lakehouse"\n'
    )
    (package / "definitions.py").write_text(
        "import pathlib\nimport dagster\n\n@dagster.definitions\ndef defs():\n"
        "    return dagster.load_from_defs_folder(path_within_project=pathlib.Path(__file__).parent)\n"
    )
    for language in ("python", "yaml"):
        for text in fenced(page, language):
            file = tmp_path / text.splitlines()[0].removeprefix("# ").removeprefix("add to ")
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as sink:
                sink.write(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "src")

    steps = [words for words in commands(page) if words[0] not in FOREIGN]
    assert steps[0] == ["python", "make_table.py"]
    exec(compile(Path("make_table.py").read_text(), "make_table.py", "exec"), {})
    ran, before = [], ""
    for program, *words in steps[1:]:
        if program == "dvm":
            assert main(words) == 0
            before = capsys.readouterr().out
            ran.append(words[0])
        elif words[0] == "check":
            tool = Path(sys.executable).parent / "dg"
            environment = {"PATH": f"{tool.parent}:/usr/bin:/bin", "PYTHONPATH": "src", "HOME": str(tmp_path)}
            done = subprocess.run(
                [tool, *words],
                env={**environment, "DAGSTER_DISABLE_TELEMETRY": "yes"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        elif words[0] == "launch":
            from lakehouse.definitions import defs

            key, partition = dg.AssetKey.from_user_string(words[2]), dict(pairwise(words)).get("--partition")
            with dg.DagsterInstance.ephemeral() as instance:
                result = (
                    defs()
                    .resolve_implicit_global_asset_job_def()
                    .execute_in_process(
                        asset_selection=[key],
                        partition_key=partition,
                        run_config={"resources": {"spark": {"config": {"engine": "local"}}}},
                        instance=instance,
                    )
                )
            assert result.success
            failed = [each.check_name for each in result.get_asset_check_evaluations() if not each.passed]
            # The second of two partitions with deletion vectors cures the table.
            assert ("deleted_ratio" in failed) == (partition != "AT")
        if ran[-1:] == ["plan"]:
            for text in fenced(page, "text"):
                assert text in before
            ran.append("plan checked")
    assert ran == ["health", "plan", "plan checked", "health"]
    assert re.search(r"^all +4 +0 +75,000 +0 ", before, re.MULTILINE), before


# -- permissions -------------------------------------------------------------------------------------------------

# Of a storage call: the action that S3 asks for, and whether it is about the bucket or an object.
ACTIONS = {
    **dict.fromkeys(("get", "get_range", "head", "open_input"), "s3:GetObject"),
    **dict.fromkeys(("list", "walk", "folders"), "s3:ListBucket"),
    **dict.fromkeys(("put", "create", "open_output"), "s3:PutObject"),
    "delete": "s3:DeleteObject",
}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """(action, resource) of every storage call since, as if the table lay at ``s3://lake/orders``."""
    asked: set[tuple[str, str]] = set()

    def recording(action: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def record(self: Storage, path: Any = "", *rest: Any, **options: Any) -> Any:
            paths = [path] if isinstance(path, str) else list(path)
            for each in paths:
                key = self.uri_of(each).partition("/orders/")[2]
                place = "arn:aws:s3:::lake" if action == "s3:ListBucket" else f"arn:aws:s3:::lake/orders/{key}"
                asked.add((action, place))
            first = () if call.__name__ == "walk" else (path if isinstance(path, str) else paths,)
            return call(self, *first, *rest, **options)

        return record

    for name, action in ACTIONS.items():
        monkeypatch.setattr(Storage, name, recording(action, getattr(Storage, name)))
    return asked


def test_policies_allow_what_the_jobs_ask_for_and_no_more(tmp_path: Path, requests: set[tuple[str, str]]) -> None:
    path = str(tmp_path / "orders")
    properties = {"delta.deletedFileRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "3"}
    builder = DeltaBuilder(path).create(
        pa.schema([("id", pa.int64()), ("part", pa.int64())]), partition_by=["part"], properties=properties
    )
    builder.append(pa.table({"id": range(100), "part": [1] * 50 + [2] * 50}))
    builder.delete(lambda rows: pc.less(rows["id"], 25))

    def inspect() -> None:
        inspect_table(open_table(path), jobs=("optimize", "vacuum", "manifest"))
        check_table(lambda: open_table(path))

    def rewrite() -> None:
        purge(open_table(path), LocalEngine())
        write_manifests(open_table(path), LocalEngine())
        builder.delete(lambda rows: pc.equal(rows["part"], 2))
        # The other partition is gone, and so must be its manifest.
        write_manifests(open_table(path), LocalEngine(), purge_first=True)

    jobs = {"inspect": inspect, "rewrite": rewrite, "vacuum": lambda: vacuum(open_table(path))}
    policies = {body["Id"]: body for body in map(json.loads, fenced(DOCS / "guides" / "permissions.md", "json"))}
    assert policies.keys() == jobs.keys()
    for name, job in jobs.items():
        requests.clear()
        job()
        # The builder's own writer is somebody else.
        asked = {each for each in requests if "deletion_vector" not in each[1] or each[0] != "s3:PutObject"}
        # Checksum files are of the local file system only.
        asked = {each for each in asked if not each[1].endswith(".crc")}
        used = defaultdict(set)
        for action, resource in asked:
            allowing = [
                (each_action, pattern)
                for statement in policies[name]["Statement"]
                for each_action in several(statement["Action"])
                for pattern in several(statement["Resource"])
                if each_action == action and fnmatchcase(resource, pattern)
            ]
            assert allowing, f"{name}: {action} on {resource}"
            used[name].update(allowing)
        granted = {
            (action, pattern)
            for statement in policies[name]["Statement"]
            for action in several(statement["Action"])
            for pattern in several(statement["Resource"])
        }
        # A rewrite deletes data files only of its own that it could not commit.
        unasked = {("s3:DeleteObject", "arn:aws:s3:::lake/*.parquet")} if name == "rewrite" else set()
        assert granted - used[name] == unasked, name


def several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


# -- words -------------------------------------------------------------------------------------------------------


def said() -> str:
    """Every text that the package can say, a line each, with … for what is filled in."""
    texts = []
    for file in (ROOT / "dv_maintenance").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_quoted_messages_are_what_the_code_says() -> None:
    page = (DOCS / "guides" / "troubleshooting.md").read_text()
    known = said()
    quoted = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE) + re.findall(r"^`([^`]+…[^`]*)`", page, re.MULTILINE)
    words = [each for each in quoted if " " in each and "`Never" not in each]
    strangers = {"Never materialized"}  # the web page's
    assert len(words) > 20
    for message in set(words) - strangers:
        assert message.strip("… ") in known, message


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in titles}, anchor


def test_every_page_has_a_place_in_the_site() -> None:
    """`make docs` says so, too, but only once it is built: test_site.py."""
    nav = re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(nav) == len({*nav})
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} <= {*nav}


# -- what works on which table -------------------------------------------------------------------------------------


def test_verbs_by_format_are_the_capabilities_of_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capability = {
        "changes": capabilities.ChangeFeedTable,
        "checkpoint": capabilities.CheckpointableTable,
        "convert": capabilities.AdoptingTable,
        "downgrade": capabilities.DowngradableTable,
        "engine-sql": capabilities.EngineSqlTable,
        "manifest": capabilities.SymlinkManifestTable,
        "publish": capabilities.PublishableTable,
        "recount": capabilities.RecountableTable,
        "rename-manifests": capabilities.RenamableManifestsTable,
        "restore": capabilities.RestorableTable,
        "undelete": capabilities.UndeletableTable,
        "cluster": capabilities.OrderableTable,
        "zorder": capabilities.OrderableTable,
    }
    rows = matrix("Verbs by format")
    said = {verb: row for row in rows for verb in re.findall(r"`([a-z-]+)`", row["verb"])}
    with pytest.raises(SystemExit):
        parse(["--help"])
    verbs = set(re.findall(r"^    ([a-z][a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert verbs - {"demo"} == said.keys()
    for known in formats():
        table = known.open(Location(Storage(str(tmp_path))))
        for verb, protocol in capability.items():
            columns = [name for name in said[verb] if name.startswith(known.title)]
            assert columns
            for column in columns:
                works = said[verb][column].startswith("yes")
                assert works == isinstance(table, protocol), (verb, column)


def test_table_features_are_those_of_the_code(tmp_path: Path) -> None:
    from dataclasses import replace

    DeltaBuilder(str(tmp_path)).create(pa.schema([("id", pa.int64())]))
    snapshot = load_snapshot(Storage(str(tmp_path)))
    operations = {
        "purge, compact": ("rewrite",),
        "delete": ("delete",),
        "update, merge": ("update", "merge"),
        "vacuum": ("vacuum",),
        "manifest": ("manifest",),
    }
    listed, reasons = set(), []
    cells, refusals = 0, Counter[str]()
    for row in matrix("Delta Lake: table features"):
        names = ["unheardOf"] if row["feature"] == "any other name" else row["feature"].split(", ")
        listed |= {*names}
        for name in names:
            featured = replace(snapshot, protocol=Protocol(3, 7, frozenset(), frozenset({name})))
            cells += len(row) - 2
            for column, ran in operations.items():
                for operation in ran:
                    works = True
                    try:
                        check_writable(Storage(str(tmp_path)), featured, operation)
                    except UnsupportedFeatureError as error:
                        works = False
                        reasons.append((name, error.message, row["why refused, what to do"]))
                    # What a cell says of "while" depends on the table's properties and files, not on the feature.
                    refused = row[column].startswith("refused") and " while " not in row[column]
                    assert works != refused, (name, operation)
                refusals[name] += not works
            readable = True
            try:
                check_readable(featured.protocol, table="")
            except UnsupportedFeatureError:
                readable = False
            assert readable == row["read, health"].startswith("yes"), name
            refusals[name] += not readable
    assert len(listed) > 35
    for name, message, said in reasons:
        why, colon, what = said.partition(": ")
        assert why, f"{name}: why"
        assert why in message, (name, message)
        assert colon or name == "intervalTypes"
        assert what or not colon
    explained: set[str] = set()
    for row in matrix("Delta Lake: refusals"):
        names = row["features"].replace("any other name", "unheardOf").split(", ")
        assert explained.isdisjoint(names)
        explained |= {*names}
        assert int(row["cells"]) == sum(refusals[name] for name in names), row["reason"]
        assert shown(row["what shows it"]), row["reason"]
    assert explained == {name for name, count in refusals.items() if count}
    assert f"{sum(refusals.values())} of the {cells} cells" in FEATURES.read_text()


def shown(cell: str) -> bool:
    """Whether a cell names a judge's run: tests that exist, by file and name."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell)
    for file, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), (file, name)
    return bool(named)


@pytest.mark.parametrize("format", ["Iceberg", "Lance", "Paimon"])
def test_refusals_are_necessary_or_limits(format: str) -> None:
    """Each with a run that shows it, in the cell or of the section's judge, or with other means."""
    rows = matrix(f"{format}: refusals")
    limits = [row for row in rows if row["necessary"].startswith("limit: ")]
    section = FEATURES.read_text().split(f"## {format}: refusals\n")[1]
    assert section.lstrip().startswith(f"{len(rows)} things are refused, {len(limits)} of them for a limit")
    judge = (ROOT / "tests" / "judges" / "test_refusals_judged.py").read_text()
    for row in rows:
        if row not in limits:
            assert row["necessary"].startswith("yes: ")
            assert shown(row["necessary"]) or f'"{row["refused"]}"' in judge, row["refused"]


def test_verbs_that_a_format_lacks_have_a_reason() -> None:
    refused = {
        (title, verb)
        for row in matrix("Verbs by format")
        for title, cell in row.items()
        for verb in re.findall(r"`([a-z-]+)`", row["verb"])
        if cell.startswith("refused")
    }
    explained = [
        (title, verb)
        for row in matrix("Verbs that a format lacks")
        for title in row["format"].split("; ")
        for verb in re.findall(r"`([a-z-]+)`", row["verbs"])
    ]
    assert len({*explained}) == len(explained)
    assert {*explained} == refused
    for row in matrix("Verbs that a format lacks"):
        assert row["necessary"].startswith(("yes", "no")), row["why"]
    assert f"{len(refused)} pairs" in FEATURES.read_text()
