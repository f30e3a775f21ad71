"""What tests of the command line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dv_maintenance import cli


@pytest.fixture
def dvm(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Run a verb with --json and the local engine: (exit code, document)."""

    def run(verb: str, *argv: object) -> tuple[int, Any]:
        code = cli.main([verb, *map(str, argv), "--engine", "local", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run
