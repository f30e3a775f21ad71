"""What an error says, and that it survives a trip between processes."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from dv_maintenance import errors
from dv_maintenance.errors import (
    ConflictError,
    DamagedDeletionVectorError,
    DvMaintenanceError,
    FatalError,
    MissingValueError,
    RetryableError,
    StorageError,
    UnsupportedFeatureError,
)


def test_the_text_names_table_version_progress_and_next_step() -> None:
    error = ConflictError("lost the race", table="/t", version=7, done="3 files written", next_step="run again")
    assert str(error) == "/t at version 7: lost the race. Done so far: 3 files written. Next: run again"


def test_what_mostly_helps_stands_in_for_a_next_step() -> None:
    assert "Next: restore the file" in str(DamagedDeletionVectorError("cut off", file="f.bin"))
    assert StorageError("no answer").to_json()["next_step"]
    assert str(StorageError("no answer", next_step="wait")) == "no answer. Next: wait"
    assert DvMaintenanceError("x").next_step is None


@pytest.mark.parametrize(
    "error",
    [
        ConflictError("x", table="/t", version=1, done="a", next_step="b"),
        DamagedDeletionVectorError("bad magic", file="f.bin", offset=9, table="/t"),
        MissingValueError("a", "f.parquet does not have it", table="/t"),
        UnsupportedFeatureError("no", features=("a", "b"), version=3),
    ],
)
def test_an_error_survives_pickling(error: DvMaintenanceError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.to_json() == error.to_json()


BASES = {DvMaintenanceError, StorageError}


def test_no_code_raises_an_error_that_is_neither_retryable_nor_fatal() -> None:
    """A plain StorageError would never be retried, and never reported as final."""
    package = Path(errors.__file__).parent
    calls = [
        (path.name, node.lineno)
        for path in package.rglob("*.py")
        if "testing" not in path.parts and "StorageError" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "StorageError"
    ]
    assert not calls


def test_every_error_is_either_retryable_or_fatal() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    leaves = [kind for kind in kinds if issubclass(kind, DvMaintenanceError) and kind not in BASES]
    assert len(leaves) >= 8
    for kind in leaves:
        assert issubclass(kind, RetryableError) != issubclass(kind, FatalError), kind


def test_exit_codes_are_the_contract() -> None:
    codes = {
        name: getattr(errors, name).exit_code for name in errors.__all__ if hasattr(getattr(errors, name), "exit_code")
    }
    assert codes == {
        "ConflictError": 4,
        "DamagedDeletionVectorError": 5,
        "DamagedTableError": 5,
        "DvMaintenanceError": 1,
        "EngineUnavailableError": 1,
        "MissingSoftwareError": 3,
        "MissingValueError": 5,
        "NotPermittedError": 3,
        "OutOfResourcesError": 1,
        "RefusedError": 3,
        "StorageDeniedError": 1,
        "StorageError": 1,
        "StorageUnavailableError": 1,
        "TableNotFoundError": 2,
        "UnsupportedFeatureError": 3,
        "UsageError": 2,
        "VerificationError": 1,
    }
