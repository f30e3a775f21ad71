"""Spans: off unless asked for, with what was done and why, and never with a secret."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance import tracing
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The finished spans, in order of their ends."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    found: list[Any] = []

    class Kept(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            found.extend(spans)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Kept()))
    tracer = provider.get_tracer("test")
    monkeypatch.setattr(tracing, "_tracer", lambda: tracer)
    yield found
    provider.shutdown()


@pytest.fixture
def place(tmp_path: Path) -> str:
    builder = DeltaBuilder(str(tmp_path / "orders")).create(SCHEMA)
    builder.append(pa.table({"id": range(100)}, schema=SCHEMA))
    builder.delete(lambda rows: pc.less(rows["id"], 40))
    return str(tmp_path / "orders")


def test_a_run_from_look_to_vacuum(place: str, spans: list[Any]) -> None:
    table = open_table(place)
    inspect_table(table)
    spans.clear()
    maintain(table, LocalEngine())
    vacuum(table, VacuumRequest(dry_run=True))
    names = [each.name for each in spans]
    assert names == ["dvm.plan", "dvm.task", "dvm.rewrite", "dvm.commit.attempt", "dvm.commit", "dvm.vacuum"]
    of = dict(zip(names, spans, strict=True))
    assert of["dvm.commit.attempt"].parent.span_id == of["dvm.commit"].context.span_id
    assert of["dvm.task"].parent.span_id == of["dvm.rewrite"].context.span_id
    task = dict(of["dvm.task"].attributes)
    assert (task["dvm.rows"], task["dvm.rows_purged"], task["dvm.version"]) == (100, 40, 2)
    assert "40.00%" in task["dvm.reason"] or "deleted" in task["dvm.reason"]
    assert dict(of["dvm.commit"].attributes)["dvm.version"] == 3
    assert of["dvm.task"].end_time >= of["dvm.task"].start_time


def test_a_look(place: str, spans: list[Any]) -> None:
    inspect_table(open_table(place))
    look = spans[-1]
    assert look.name == "dvm.inspect"
    assert dict(look.attributes) | {"dvm.table": ""} == {
        "dvm.table": "",
        "dvm.format": "delta",
        "dvm.version": 2,
        "dvm.changed": True,
        "dvm.due": "optimize",
    }


def test_errors_and_secrets(spans: list[Any]) -> None:
    with pytest.raises(ValueError), tracing.span("inspect", table="https://me:hidden-word@lake/t?sig=hidden-word"):
        raise ValueError("hidden-word")
    (span,) = spans
    assert span.status.description == "ValueError"
    assert not span.events
    assert "hidden-word" not in span.to_json()


def test_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVM_TRACING", raising=False)
    tracing._tracer.cache_clear()
    first = tracing.span("inspect", table="t")
    assert first is tracing.span("plan")
    tracing.finished("task", 1.0)
    with first as traced:
        traced.set(rows=1)


def test_on_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVM_TRACING", "1")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing._tracer.cache_clear()
    with pytest.raises(UsageError, match=r"dv-maintenance\[otel\]"):
        tracing.span("inspect")
    tracing._tracer.cache_clear()
