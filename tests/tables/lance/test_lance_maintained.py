"""Cleanup and manifests of Lance tables as the layers above ask for them: command line, policy, watch, Dagster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from support.aged import age, clock, rows
from support.raw_manifest import newest_manifest, patch

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UnsupportedFeatureError
from dv_maintenance.maintenance.checks import check_table
from dv_maintenance.maintenance.erasure import expires_at
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table

DAY = 86_400_000


@pytest.fixture
def shared(pylance: ModuleType, tmp_path: Path) -> tuple[Path, Path]:
    """A table and its clone; the table has two versions that nobody needs but the clone."""
    place, clone = tmp_path / "t", tmp_path / "c"
    dataset = pylance.write_dataset(pa.table({"id": range(100)}), str(place))
    dataset.delete("id = 5")
    dataset.shallow_clone(str(clone), 2)
    pylance.write_dataset(pa.table({"id": [1]}), str(place), mode="overwrite")
    age(place)
    return place, clone


def test_vacuum_counts_every_kind(shared: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    place, _ = shared
    assert main(["vacuum", str(place), "--dry-run"]) == 0
    assert "would be deleted: 1 data, 1 DV, 2 transaction, 2 version" in capsys.readouterr().out
    assert main(["vacuum", str(place), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    counts = {key: body[key] for key in body if key.endswith("_files")}
    assert counts == {
        "data_files": 1, "dv_files": 1, "change_files": 0, "index_files": 0, "transaction_files": 2,
        "version_files": 2, "other_files": 0,
    }  # fmt: skip
    assert (body["deleted"], body["version_after"]) == (6, 3)


def test_vacuum_protects_clones(
    shared: tuple[Path, Path],
    pylance: ModuleType,
    capsys: pytest.CaptureFixture[str],
    golden_copy: Callable[[str], Path],
) -> None:
    place, clone = shared
    before = rows(pylance, clone)
    assert main(["vacuum", str(place), "--protect", str(clone), "--protect", str(place.parent / "none")]) == 3
    assert "none cannot be read" in capsys.readouterr().err
    assert main(["vacuum", str(place), "--protect", str(clone), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"]["in a clone that is protected"] == 2
    assert rows(pylance, clone) == before
    assert main(["vacuum", str(golden_copy("delta/table-with-dv-small")), "--protect", str(clone)]) == 3
    assert str(clone) in capsys.readouterr().err, "a Lance table cannot be a clone of a Delta table"


def test_vacuum_finds_clones(
    shared: tuple[Path, Path], pylance: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    place, clone = shared
    lake = place.parent / "lake"
    lake.mkdir()
    clone.rename(lake / "c")
    pylance.write_dataset(pa.table({"id": [7]}), str(lake / "own"))
    before = rows(pylance, lake / "c")
    assert main(["vacuum", str(place), "--clones-under", str(lake), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"]["in a clone that is protected"] == 2
    assert rows(pylance, lake / "c") == before
    (damaged,) = (lake / "own/_versions").glob("*.manifest")
    damaged.write_bytes(b"LANC")
    assert main(["vacuum", str(place), "--clones-under", str(lake)]) != 0
    assert "which may be a clone of it, can't be read" in capsys.readouterr().err
    assert rows(pylance, lake / "c") == before
    assert main(["vacuum", str(place)]) == 0
    with pytest.raises((OSError, pa.ArrowInvalid), match=r"[Nn]ot found"):
        rows(pylance, lake / "c")


def test_a_policy_protects_clones(shared: tuple[Path, Path]) -> None:
    place, clone = shared
    table = open_table(str(place))
    policy = Policy.from_mapping({"clones": [str(clone)]})
    (unprotected,) = inspect_table(table, jobs=["vacuum"]).reasons["vacuum"]
    (protected,) = inspect_table(table, policy, jobs=["vacuum"]).reasons["vacuum"]
    assert (unprotected.split()[0], protected.split()[0]) == ("6", "4")
    lost = Policy.from_mapping({"clones": [str(clone), "/nowhere"]})
    assert "vacuum" not in inspect_table(table, lost, jobs=["vacuum"]).due
    assert "cannot be read" in inspect_table(table, lost, jobs=["vacuum"]).warnings[0]


def test_when_bytes_can_be_removed(shared: tuple[Path, Path]) -> None:
    now = clock()
    assert expires_at(open_table(str(shared[0])), now=now) == now + 14 * DAY
    assert expires_at(open_table(str(shared[0])), 20 * DAY, now=now) == now + 20 * DAY


# -- manifests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--purge-first"]])
def test_there_is_no_manifest_to_write(
    options: list[str], golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    place = golden_copy("lance/mixed_fragments")
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    assert main(["manifest", str(place), *options]) == 0
    assert "Lance writes its own manifests: nothing to generate" in capsys.readouterr().out
    assert main(["manifest", str(place), *options, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["manifests"], body["files"], body["purged"]) == ([], 4, False)
    assert body["note"] == "Lance writes its own manifests: nothing to generate"
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_unknown_writers_flags_are_refused(golden_copy: Callable[[str], Path]) -> None:
    place = golden_copy("lance/mixed_fragments")
    patch(newest_manifest(place), lambda records: [*records, (10, 1 << 20)])
    with pytest.raises(UnsupportedFeatureError, match="flag 1048576"):
        write_manifests(open_table(str(place)), LocalEngine())


def test_no_manifest_is_ever_due(golden_copy: Callable[[str], Path]) -> None:
    place = golden_copy("lance/mixed_fragments")
    table = open_table(str(place))
    found = inspect_table(table, jobs=["manifest"])
    assert found.due == ()
    assert inspect_table(table, last=found, jobs=["manifest"]).due == ()
    finding = next(each for each in check_table(lambda: table, Policy()) if each.check == "manifest_lag")
    assert finding.severity is None
    assert "its own manifests" in finding.reason


def test_no_manifest_asset_where_the_format_is_known(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    import dagster as dg

    from dv_maintenance.dagster import SparkResource, build_dv_assets

    path = str(golden_copy("lance/mixed_fragments"))
    known = TableSettings.model_validate({"path": path, "format": "lance", "jobs": ["vacuum", "manifest"]})
    assert known.jobs == ("vacuum",)
    found_out = TableSettings.model_validate({"path": path, "jobs": ["vacuum", "manifest"]})
    keys = [asset.key.path[-1] for asset in build_dv_assets([known])]
    assert keys == ["mixed_fragments", "mixed_fragments_vacuum"]
    assets = build_dv_assets([found_out])
    result = dg.materialize(
        [asset for asset in assets if asset.key.path[-1].endswith(("_manifest", "_vacuum"))],
        resources={"spark": SparkResource(engine="local")},
        instance=dg.DagsterInstance.ephemeral(str(tmp_path)),
    )
    (manifest,) = result.asset_materializations_for_node("mixed_fragments__dv_manifest")
    assert "its own manifests" in str(manifest.metadata["reason"].value)
    (vacuum,) = result.asset_materializations_for_node("mixed_fragments__dv_vacuum")
    assert vacuum.metadata["files_deleted"].value == 0
