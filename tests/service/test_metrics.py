"""Metrics for Prometheus: names with units, escaped labels, a file that is never half written, and a push."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.served import served

from dv_maintenance.errors import StorageError, UsageError
from dv_maintenance.service.lake import LakeTable
from dv_maintenance.service.metrics import exposition, publish

ORDERS = LakeTable(
    "sales/orders",
    "s3://lake/sales/orders",
    "delta",
    7,
    files=3,
    size_bytes=1 << 40,
    files_with_dv=2,
    deleted_rows=50,
    deleted_ratio=0.25,
    oldest_dv=1_000_000,
    small_files=1,
    expired_bytes=2048,
    due=("optimize",),
)
SAMPLE = re.compile(r'([a-z_]+)(\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\})? (\S+)')


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [SAMPLE.fullmatch(line) for line in lines]
    assert all(found)
    return {f"{each[1]}{each[2] or ''}": float(each[4]) for each in found if each}


def test_names_have_units_and_labels() -> None:
    found = samples(exposition([ORDERS], now=4_600_000))
    labels = '{table="sales/orders",format="delta"}'
    assert found[f"dvm_deleted_rows{labels}"] == 50
    assert found[f"dvm_deleted_ratio{labels}"] == 0.25
    assert found[f"dvm_oldest_dv_age_seconds{labels}"] == 3600
    assert found[f"dvm_vacuum_expired_bytes{labels}"] == 2048
    assert found[f"dvm_table_size_bytes{labels}"] == 1 << 40
    assert found['dvm_due{table="sales/orders",format="delta",job="optimize"}'] == 1
    assert found['dvm_due{table="sales/orders",format="delta",job="vacuum"}'] == 0
    assert found["dvm_scan_timestamp_seconds"] == 4600
    # Unknown is not zero.
    assert f"dvm_vacuum_expiring_bytes{labels}" not in found


def test_each_metric_is_described_once_and_samples_follow() -> None:
    lines = exposition([ORDERS, LakeTable("b", "b")]).splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    current = ""
    for line in lines:
        if line.startswith("# HELP"):
            current = line.split()[2]
        assert line.split("{")[0].split()[2 if line.startswith("#") else 0] == current


def test_a_table_that_cannot_be_read() -> None:
    found = samples(exposition([LakeTable('a "b"\\\n', "x", error="damaged")]))
    assert [name for name in found if name.startswith("dvm_") and "{" in name] == [
        'dvm_table_readable{table="a \\"b\\"\\\\\\n",format="unknown"}'
    ]
    assert next(iter(found.values())) == 0


def test_a_file_is_replaced_and_readable_by_the_exporter(tmp_path: Path) -> None:
    file = tmp_path / "dvm.prom"
    file.write_text("old")
    kept = open(file)  # noqa: SIM115
    publish("new\n", str(file))
    with kept:
        assert kept.read() == "old"
    assert file.read_text() == "new\n"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o644
    assert os.listdir(tmp_path) == ["dvm.prom"]


@pytest.mark.parametrize("target", ["metrics.txt", "/no/such/folder/dvm.prom", "ftp://gateway"])
def test_targets_that_make_no_sense(target: str) -> None:
    with pytest.raises(UsageError):
        publish("x", target)


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[Any]]]:
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            seen.append((self.path, body, self.headers["Authorization"]))
            self.send_response(400 if "bad" in self.path else 200)
            self.end_headers()

    with served(Handler) as url:
        yield url.removeprefix("http://"), seen


def test_a_push_replaces_the_group_of_the_job(gateway: tuple[str, list[Any]]) -> None:
    host, seen = gateway
    publish("a 1\n", f"http://{host}")
    publish("a 2\n", f"http://me:s%40crt@{host}/metrics/job/lake")
    login = "Basic " + base64.b64encode(b"me:s@crt").decode()
    assert seen == [("/metrics/job/dvm", "a 1\n", None), ("/metrics/job/lake", "a 2\n", login)]


def test_a_gateway_that_refuses_or_is_not_there(gateway: tuple[str, list[Any]]) -> None:
    host, _ = gateway
    with pytest.raises(StorageError, match="answered 400") as refused:
        publish("x", f"http://me:hidden-word@{host}/bad?token=hidden-word")
    with pytest.raises(StorageError, match="can't be reached"):
        publish("x", "http://127.0.0.1:1")
    assert "hidden-word" not in str(refused.value)
