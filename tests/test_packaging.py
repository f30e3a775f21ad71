"""What a registry would take, and what somebody gets who installs it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling import build as hatchling
from support.first_day import UV, build, clean_environment
from support.places import ROOT

from dv_maintenance import __version__

SOURCE = "https://forge.example/team/dv_maintenance"


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as for a release, in this process."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("DVM_SOURCE_URL", SOURCE)
        return folder / hatchling.build_wheel(str(folder))


def test_metadata_is_what_every_registry_takes(wheel: Path) -> None:
    """Hatchling itself refuses unknown classifiers and licenses."""
    found = metadata(wheel)
    assert found["Metadata-Version"] == "2.4", "newer ones are refused by some"
    assert found["License-Expression"] == "Apache-2.0"
    assert found["License-File"] == "LICENSE"
    assert found["Requires-Python"] == ">=3.11"
    assert found["Description-Content-Type"] == "text/markdown"
    urls = dict(each.split(", ") for each in found.get_all("Project-URL", []))
    assert urls.keys() == {"Homepage", "Documentation", "Changelog", "Issues", "Source"}
    for url in urls.values():
        assert url.startswith(SOURCE)
        file = url.partition(f"/blob/v{found['Version']}/")[2]
        assert (ROOT / file).exists(), file


def test_the_extra_of_dagster_asks_for_dagster_and_its_spark_alone(wheel: Path) -> None:
    asked = [each for each in metadata(wheel).get_all("Requires-Dist", []) if "extra == 'dagster'" in each]
    assert [re.split(r"[<>=; ]", each)[0] for each in asked] == ["dagster-pyspark", "dagster"]


def test_links_of_the_description_lead_out_of_the_registry(wheel: Path) -> None:
    text = str(metadata(wheel).get_payload())
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 25
    for target in targets:
        assert target.startswith(("https://", "http://127.0.0.1")), target
        kind, _, file = target.removeprefix(f"{SOURCE}/").partition(f"/v{__version__}/")
        if file:
            assert (kind, (ROOT / file).exists()) == ("raw" if file.endswith(".png") else "blob", True), target


def test_without_an_address_links_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("DVM_SOURCE_URL", raising=False)
    found = metadata(tmp_path / hatchling.build_wheel(str(tmp_path)))
    text = str(found.get_payload())
    assert found["Project-URL"] is None
    assert {each.partition(":")[0] for each in re.findall(r"\]\(([^)]+)\)", text)} == {"https"}
    assert "the first table in five minutes, many tables" in text


def test_the_wheel_has_the_package_and_the_code_location_of_the_demo(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"dv_maintenance"}
    assert "dv_maintenance/py.typed" in names
    packed = "dv_maintenance/cli/demo/checkout/"
    shown = {f"{packed}sensors/{file.name}" for file in (ROOT / "sensors").iterdir() if file.is_file()}
    settings = {f"{packed}{name}" for name in ("workspace.yaml", "dg.toml")}
    assert {name for name in names if name.startswith(packed)} == shown | settings
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.deep
@pytest.mark.processes
def test_a_registry_would_take_both(tmp_path: Path) -> None:
    """By the address of the page, also in the wheel that is built from the source distribution later, without it."""
    made = build(tmp_path, DVM_SOURCE_URL=SOURCE)
    assert len(made) == 2
    command = [UV, "run", "--isolated", "--frozen", "--only-group", "dist", "twine", "check", "--strict"]
    done = subprocess.run(
        [*command, *map(str, made)], cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (distribution,) = (path for path in made if path.suffix == ".gz")
    shutil.unpack_archive(distribution, tmp_path)
    (again,) = build(tmp_path / "again", "--wheel", source=tmp_path / distribution.name.removesuffix(".tar.gz"))
    assert metadata(again).get_all("Project-URL") == metadata(made[0]).get_all("Project-URL")
    assert f"({SOURCE}/blob/" in str(metadata(again).get_payload())


@pytest.mark.deep
@pytest.mark.processes
def test_installed_it_runs_anywhere(tmp_path: Path) -> None:
    """The wheel alone in a new environment, in a foreign folder: the verbs work, and one that needs an extra says so.
    With the extra, the whole demo runs.
    """
    (wheel,) = build(tmp_path / "dist", "--wheel")
    foreign, python = tmp_path / "foreign", tmp_path / "venv" / "bin" / "python"
    foreign.mkdir()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=foreign, env=clean_environment(), capture_output=True, text=True, check=False, timeout=900
        )

    def install(what: str) -> None:
        done = run(UV, "pip", "install", "--quiet", "--python", str(python), what)
        assert done.returncode == 0, done.stderr

    assert run(UV, "venv", "--quiet", "--python", "3.11", str(python.parents[1])).returncode == 0
    install(str(wheel))
    dvm = str(python.parent / "dvm")
    doctor = json.loads(run(dvm, "doctor", "--json").stdout)
    assert all(check["ok"] for check in doctor["checks"] if check["name"] != "java")
    refused = run(dvm, "demo")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "pip install 'dv-maintenance[dagster]'" in refused.stderr
    assert not list(foreign.iterdir())

    install(f"{wheel}[dagster]")
    done = run(dvm, "demo", "--rows", "3000", "--engine", "local", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [table["name"] for table in report["tables"]] == ["demo/orders", "demo/customers", "demo/events"]
    assert {table["after"]["files_with_dv"] for table in report["tables"]} == {0, 1}
    assert "checkout" in report["ui"]
