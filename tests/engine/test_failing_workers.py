"""What Spark's workers say when they fail, and Spark of them: no storage option that is a secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.testing.delta_builder import DeltaBuilder

CANARY = "CaNaRy5eCrEtOfAStOrE"
LOUD = "spark.log.level=ALL"
RUN = "import sys; from dv_maintenance.cli import main; sys.exit(main(sys.argv[1:]))"
# How reading a deletion vector fails in a worker: it dies, it raises, it raises an error that quotes what it was given.
FAILURES = {
    "dies": "os._exit(9)",
    "raises": "raise ValueError('an error of the worker')",
    "quotes its options": "raise OSError('denied: ' + str(fetch.__self__.options))",
}
PLANTED = """
import os, sys
if "pyspark.worker" in sys.orig_argv:
    from dv_maintenance.tables import dv_codecs
    def load(ref, fetch, *, rows=None):
        {failure}
    dv_codecs.load = load
"""


@pytest.mark.deep
@pytest.mark.jvm
@pytest.mark.parametrize("failure", [None, *FAILURES])
def test_no_secret_in_what_is_printed(s3: tuple[str, dict[str, str]], tmp_path: Path, failure: str | None) -> None:
    """Whatever Spark can log is printed. ``None``: a deletion vector that is damaged."""
    bucket, options = s3
    uri = f"{bucket}/workers/{(failure or 'damaged').replace(' ', '-')}"
    builder = DeltaBuilder(uri, storage_options=options).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(100)}))
    builder.delete(lambda batch: pc.less(batch["id"], 60))
    storage = builder.storage
    if failure is None:
        (dv,) = [each.path for each in storage.list("") if each.path.endswith(".bin")]
        size = len(storage.get(dv))
        storage.delete([dv])
        storage.put(dv, bytes(size))
    else:
        (tmp_path / "sitecustomize.py").write_text(PLANTED.format(failure=FAILURES[failure]))
    given = {**options, "aws_secret_access_key": CANARY, "aws_session_token": CANARY + "2"}
    command = ["purge", uri, "--engine", "spark", "-vv"]
    command += [word for key, value in given.items() for word in ("--storage-option", f"{key}={value}")]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "DVM_DEBUG": "1",
        "PYSPARK_SUBMIT_ARGS": f"--conf {LOUD} pyspark-shell",
    }
    command = [sys.executable, "-c", RUN, *command]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    said = done.stdout + done.stderr
    assert done.returncode, said
    print(f"{failure}: {len(said)} characters")
    assert "spark" in said.lower()
    assert CANARY not in said, said[max(said.index(CANARY) - 300, 0) :][:600]
