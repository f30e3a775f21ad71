"""Spans of OpenTelemetry around the steps of maintenance. Off unless ``DVM_TRACING=1`` is set in the environment.

Only the API is used: which exporter gets the spans is configured where the process starts, as by
``opentelemetry-instrument``. Attributes are names, versions, numbers and reasons, never storage options; addresses are
redacted as in messages.
"""

from __future__ import annotations

import os
import time
from functools import cache
from types import TracebackType
from typing import Any, Protocol, Self

from dv_maintenance.errors import UsageError, redacted

Attribute = str | int | float | bool | None


class Span(Protocol):
    """One step; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends the span, with the kind of error if there was one."""

    def set(self, **attributes: Attribute) -> None:
        """Add what became known inside; ``None`` is left out."""


def span(name: str, **attributes: Attribute) -> Span:
    """A span around a ``with`` block, the parent of spans that begin in it.

    name : without the prefix ``dvm.``.

    Raises
    ------
    UsageError : tracing is on, and OpenTelemetry's API is not installed.
    """
    tracer = _tracer()
    return _OFF if tracer is None else _Recorded(tracer, name, attributes)


def finished(name: str, seconds: float, **attributes: Attribute) -> None:
    """A span that ends now and began ``seconds`` ago: of work that was done elsewhere."""
    tracer = _tracer()
    if tracer is None:
        return
    end = time.time_ns()
    made = tracer.start_span(f"dvm.{name}", start_time=end - int(seconds * 1e9), attributes=_clean(attributes))
    made.end(end)


class _Off:
    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def set(self, **attributes: Attribute) -> None:
        pass


_OFF = _Off()


class _Recorded:
    __slots__ = ("_attributes", "_current", "_name", "_span", "_tracer")

    def __init__(self, tracer: Any, name: str, attributes: dict[str, Attribute]) -> None:
        self._tracer, self._name, self._attributes = tracer, name, attributes

    def __enter__(self) -> Self:
        from opentelemetry import trace

        self._span = self._tracer.start_span(f"dvm.{self._name}", attributes=_clean(self._attributes))
        self._current = trace.use_span(self._span, record_exception=False, set_status_on_exception=False)
        self._current.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        from opentelemetry.trace import StatusCode

        if kind is not None:
            # A message or a traceback of a library may hold what messages of ours redact.
            self._span.set_status(StatusCode.ERROR, kind.__name__)
        # Without the error: it is the block's.
        self._current.__exit__(None, None, None)
        self._span.end()

    def set(self, **attributes: Attribute) -> None:
        self._span.set_attributes(_clean(attributes))


def _clean(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    return {
        f"dvm.{name}": redacted(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


@cache
def _tracer() -> Any:
    if os.environ.get("DVM_TRACING", "0") in {"", "0"}:
        return None
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise UsageError(
            "DVM_TRACING is set, and OpenTelemetry's API is not installed",
            next_step="pip install 'dv-maintenance[otel]', or unset DVM_TRACING",
        ) from error
    return trace.get_tracer("dv_maintenance")
