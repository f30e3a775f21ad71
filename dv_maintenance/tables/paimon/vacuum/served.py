"""What the server of a REST catalog says that keeps files alive, beside the files of the table.

Its snapshots and tags are usually the files' own. A snapshot that differs from its file, or that has no file,
keeps its files like a tag. So nothing is lost if the server stores them itself, or if its answers lag behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.vacuum.holders import Branch, Holders, Ref, parsed_ref

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.served import ServedTable


def with_served(layout: Layout, found: Holders, server: ServedTable) -> Holders:
    """The holders of the files, and those that the server names. It is asked after the files are read.

    Raises
    ------
    RefusedError : the server does not say what it has, or it has a branch without files.
    DamagedTableError, UnsupportedFeatureError : a snapshot can't be understood; the message says which one.
    """
    if unknown := sorted(set(server.branches()) - {name for name in found.branches if name}):
        raise RefusedError(
            f"its REST catalog names the branch {unknown[0]}, of which the table has no files",
            table=layout.uri,
            next_step="run again if it is being created or deleted now; otherwise delete it",
        )
    branches = {name: _with_named(Layout(layout.storage, name), own, server) for name, own in found.branches.items()}
    consumers = server.consumers(layout.branch)
    both = consumers.keys() & found.consumers.keys()
    earlier = {name: min(consumers[name], found.consumers[name]) for name in both}
    return Holders(branches, {**found.consumers, **consumers, **earlier})


def _with_named(layout: Layout, own: Branch, server: ServedTable) -> Branch:
    told = server.snapshots(layout.branch)
    known = {_named(ref) for ref in (*own.snapshots.values(), *own.tags.values())}
    others = {name: ref for name, body in told.items() if _named(ref := _ref(layout, name, body)) not in known}
    return replace(own, served=others)


def _ref(layout: Layout, name: str, body: Mapping[str, object]) -> Ref:
    return parsed_ref(layout, f"{layout.own}{name} of its REST catalog", orjson.dumps(body))


def _named(ref: Ref) -> tuple[object, ...]:
    return ref.id, ref.base, ref.delta, ref.changelog, ref.index, ref.statistics
