"""Functions of this package in Spark's Python workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dv_maintenance import __version__

if TYPE_CHECKING:
    import pyarrow as pa

    Worker = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def in_workers(function: Callable[..., Iterator[pa.RecordBatch]], *arguments: Any) -> Worker:
    """``function(batches, *arguments)`` for ``mapInArrow``; ``function`` belongs to a module of this package.

    The workers must have the same version of the package: what they are sent has no form that another version would
    know. They check that first. So nothing of the package is sent that a worker without it could not even load: the
    function goes as its name, the arguments as bytes.
    """
    module, name, version = function.__module__, function.__name__, __version__
    sent = pickle.dumps(arguments)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import pickle

        # A folder without modules is a package, too; the next import then says what is missing.
        there = getattr(importlib.import_module("dv_maintenance"), "__version__", version)
        if there != version:
            raise ImportError(f"dv-maintenance {there} is installed there, {version} here")
        yield from getattr(importlib.import_module(module), name)(batches, *pickle.loads(sent))  # noqa: S301

    return run
