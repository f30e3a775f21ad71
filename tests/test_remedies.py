"""What a message tells readers to do is spelled as their face spells it, and exists there."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.places import ROOT

import dv_maintenance
from dv_maintenance import api
from dv_maintenance.cli.parser import _parser
from dv_maintenance.dagster import ops, run_config
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.remedies import SETTINGS, Face, Remedy, option, run, setting, speaking

PACKAGE = ROOT / "dv_maintenance"
FACES: tuple[Face, ...] = ("cli", "dagster", "airflow", "python")


def verbs() -> dict[str, ArgumentParser]:
    (found,) = (each for each in _parser(None)._actions if isinstance(each, _SubParsersAction))
    return dict(found.choices)


@pytest.mark.parametrize(
    ("part", "spelled"),
    [
        (
            run("fsck", "s3://lake/orders", deep=True),
            ["'dvm fsck s3://lake/orders --deep'"] * 3 + ["dvm.fsck('s3://lake/orders', deep=True)"],
        ),
        (run("scan", "lake"), ["'dvm scan lake'"] * 4),
        (
            setting("protected_versions"),
            ["--protect-version", *["protected_versions in the policy of the table"] * 2, "protected_versions"],
        ),
        (
            setting("retention", "168h"),
            ["--retention 168h", *["retention: 168h in the policy of the table"] * 2, "retention='168h'"],
        ),
        (
            setting("missing_ok", True),
            [
                "--missing-ok",
                "missing_ok: true in the run config",
                "--missing-ok of the command line",
                "missing_ok=True",
            ],
        ),
        (
            option("aws_region", "REGION"),
            [
                "--storage-option aws_region=REGION",
                "aws_region: REGION in the table's storage_options",
                "aws_region: REGION in the connection of storage_conn_id",
                "storage_options={'aws_region': 'REGION'}",
            ],
        ),
    ],
)
def test_each_face_has_its_own_spelling(part: object, spelled: list[str]) -> None:
    for face, expected in zip(FACES, spelled, strict=True):
        with speaking(face):
            assert str(part) == expected


def test_an_error_speaks_the_language_of_the_process_that_shows_it() -> None:
    error = RefusedError("too short", table="t", next_step=Remedy("give {}", (setting("retention", "1h"),)))
    copy = pickle.loads(pickle.dumps(error))
    with speaking("cli"):
        assert str(copy) == "t: too short. Next: give --retention 1h"
        assert copy.to_json()["next_step"] == "give --retention 1h"
    with speaking("dagster"):
        assert str(copy) == "t: too short. Next: give retention: 1h in the policy of the table"
    assert copy.to_json()["remedy"] == [{"setting": "retention", "value": "1h"}]


def _functions() -> set[str]:
    """Of the Python API."""
    return {name for name in dv_maintenance.__all__ if inspect.isfunction(getattr(api, name, None))}


def test_every_setting_exists_where_it_is_said_to_be() -> None:
    flags = {flag for verb in verbs().values() for action in verb._actions for flag in action.option_strings}
    arguments = {name for verb in _functions() for name in inspect.signature(getattr(api, verb)).parameters}
    configs = [ops.Checkpoint, ops.Restore, ops.Zorder, ops.DeleteRows]
    configs += [each for _, each in inspect.getmembers(run_config, inspect.isclass) if hasattr(each, "model_fields")]
    keys = {name for config in configs for name in config.model_fields}
    for name, known in SETTINGS.items():
        assert known.flag in flags, name
        if known.place == "policy":
            assert name in Policy.model_fields
        elif known.place == "run":
            assert name in keys
        assert name in arguments | set(Policy.model_fields), name


def test_every_verb_that_a_message_names_exists() -> None:
    functions, commands = _functions(), set(verbs())
    for file, node in _calls():
        name = node.args[0].value  # type: ignore[attr-defined]
        assert name in commands, (file, name)
        options = {keyword.arg for keyword in node.keywords}
        flags = {flag for action in verbs()[name]._actions for flag in action.option_strings}
        assert {f"--{each.replace('_', '-')}" for each in options if each} <= flags, (file, name)
        if name in functions:
            assert options <= set(inspect.signature(getattr(api, name)).parameters), (file, name)


def _calls() -> Iterator[tuple[Path, ast.Call]]:
    """Calls of ``remedies.run``."""
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if not re.search(r"^from dv_maintenance.remedies import .*\brun\b", text, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(text)):
            is_run = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run"
            if is_run and node.args and isinstance(node.args[0], ast.Constant):
                yield file, node


def test_no_message_below_the_faces_names_a_flag_or_a_command() -> None:
    """Docstrings and comments may."""
    flag = re.compile(r"(?:^|[\s'\"(`])--[a-z]|'?\bdvm (?!(?:neither|reads)\b)[a-z]+")
    faces = {"airflow", "cli", "dagster", "testing"}
    # Parts of bucket names of S3 Express and S3 Tables, and what Policy.with_settings calls its source.
    others = {"--x-s3", "--table-s3", "--set "}
    found = []
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if file.relative_to(PACKAGE).parts[0] in faces | {"remedies.py"} or not re.search(r"--[a-z]|\bdvm ", text):
            continue
        tree = ast.parse(text)
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{file.relative_to(ROOT)}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
            if flag.search(node.value) and node.value not in others
        ]
    assert not found
