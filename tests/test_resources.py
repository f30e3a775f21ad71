"""What the system refuses is said as that: it is no verdict on the table."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.engine.faults import reading
from dv_maintenance.errors import DamagedTableError, OutOfResourcesError
from dv_maintenance.files.lance_library import translated
from dv_maintenance.resources import out_of_resources
from dv_maintenance.testing.delta_builder import DeltaBuilder

THREADS = "the system refused to start a thread"
HANDLES = "too many files are open"
MEMORY = "the system refused memory"


class ArrowError(pa.ArrowException):
    pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ArrowError("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"), THREADS),
        (RuntimeError("can't start new thread"), THREADS),
        (RuntimeError('failed to spawn thread: Os { code: 11, kind: WouldBlock, message: "..." }'), THREADS),
        (OSError(errno.EMFILE, "Too many open files"), HANDLES),
        (OSError("LanceError(IO): Too many open files (os error 24)"), HANDLES),
        (MemoryError(), MEMORY),
        (pa.ArrowMemoryError("malloc of size 1073741824 failed"), MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), MEMORY),
        (ImportError("x.so: failed to map segment from shared object"), MEMORY),
        (ArrowError("std::bad_alloc"), MEMORY),
    ],
)
def test_each_refusal_is_named(error: Exception, said: str) -> None:
    found = out_of_resources(error, "a.parquet")
    assert isinstance(found, OutOfResourcesError)
    assert found.message == f"{said} while a.parquet was read"


@pytest.mark.parametrize(
    "error",
    [
        ArrowError("Couldn't deserialize thrift: TProtocolException: Invalid data"),
        OSError(errno.EACCES, "Permission denied"),
        pa.ArrowMemoryError("malloc of size 4611686018427387904 failed"),  # what no machine has, damaged bytes claim
        ValueError("threads"),
    ],
)
def test_anything_else_is_not(error: Exception) -> None:
    assert out_of_resources(error) is None


def test_a_size_that_no_machine_has_is_damage() -> None:
    with pytest.raises(DamagedTableError), reading("a.parquet"):
        raise pa.ArrowMemoryError("malloc of size 4611686018427387904 failed")


def test_lance_s_own_library_is_understood() -> None:
    error = translated(RuntimeError("LanceError(IO): Too many open files (os error 24), /rs/io.rs:1:2"), "the table")
    assert isinstance(error, OutOfResourcesError)


def files(number: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def memory(mebibytes: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))


def test_a_healthy_table_is_not_called_damaged_for_want_of_anything(tmp_path: Path) -> None:
    """Whatever is refused first, to whichever library: some limits let the verb finish, none makes it exit with 5."""
    table = str(tmp_path / "table")
    builder = DeltaBuilder(table).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(1000)}), files=3)
    builder.delete(lambda rows: pc.less(rows["id"], 10))
    codes = set()
    for limit in [*map(files, (7, 8, 10, 64)), *map(memory, (260, 300, 360))]:
        found = subprocess.run(
            [
                sys.executable,
                "-c",
                "from dv_maintenance.cli import main; raise SystemExit(main())",
                "fsck",
                table,
                "--deep",
                "--json",
            ],
            capture_output=True,
            text=True,
            preexec_fn=limit,
            check=False,
        )
        codes.add(found.returncode)
        if found.returncode == 3:
            assert json.loads(found.stdout)["error"] == "RefusedError"
    assert codes <= {0, 1, 3}
    assert {0, 1} <= codes
