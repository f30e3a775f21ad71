"""Names of a watched table in Dagster: asset keys, op names, its pool and the tags of its runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, unquote

import dagster as dg

if TYPE_CHECKING:
    from dv_maintenance.service.tables_file import Job, TableSettings

TABLE_TAG = "dv/table"
# The page hides tags of this form: only a sensor needs these.
LOCATION_TAG = ".dagster/dv.location"
VERSION_TAG = "dv/version"
JOBS_TAG = "dv/jobs"
SETTINGS_TAG = ".dagster/dv.settings"
REFUSED_TAG = "dv/not_retryable"
DAMAGE_TAG = "dv/damaged"
RESTORABLE_TAG = ".dagster/dv.restorable"
SHARED_TAG = "dv/tables"

_NOT_IN_OPS = re.compile(r"[^A-Za-z0-9_]")
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_.-]")
_WORDS = r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*"
_PLAIN = re.compile(f"{_WORDS}(/{_WORDS})*")


def table_key(table: TableSettings) -> dg.AssetKey:
    """A name such as ``sales/orders`` is a key of two parts. Dagster derives names of ops and outputs from keys;
    characters that these may not have, such as a space, become underscores.
    """
    return dg.AssetKey([_NOT_IN_KEYS.sub("_", part) for part in table.name.split("/") if part])


def job_key(table: TableSettings, job: Job | Literal["simulation"]) -> dg.AssetKey:
    """Below the table's key. Lists and graphs show the last part of a key alone, so that part names the table, too."""
    path = table_key(table).path
    name = None if job == "simulation" else table.job_names.get(job)
    return dg.AssetKey([*path, "dv", name or f"{path[-1]}_{job}"])


def job_keys(table: TableSettings, jobs: Iterable[Job]) -> list[dg.AssetKey]:
    return [job_key(table, job) for job in jobs]


def op_name(table: TableSettings, what: str) -> str:
    return f"{_slug(table.name)}__dv_{what}"


def pool(table: TableSettings) -> str:
    """One pool per location, so that two definitions of one table take turns, under whatever names; or the one that its
    settings name. It only avoids lost work: commits keep tables correct.
    """
    return table.pool or location(table)


def location(table: TableSettings) -> str:
    """Short, and the same for every definition of the table."""
    uri = table.uri
    last = _NOT_IN_OPS.sub("_", unquote(uri.rstrip("/").rpartition("/")[2]))
    return f"dv_{last}_{sha256(uri.encode()).hexdigest()[:6]}"


def page(table: TableSettings, view: str) -> str:
    """The path of a view of the table's page. Dagster+ has a page for each deployment."""
    deployment = os.environ.get("DAGSTER_CLOUD_DEPLOYMENT_NAME")
    parts = "/".join(quote(part) for part in table_key(table).path)
    return f"{'' if deployment is None else f'/{quote(deployment)}'}/assets/{parts}?view={view}"


def work_tag(key: str) -> str:
    """The name of the tag that a shared run has for a part of its work, given the key of that part. Names of tags are
    short, and a run has one value for each.
    """
    return f".dagster/dv.work.{sha256(key.encode()).hexdigest()[:24]}"


def _slug(name: str) -> str:
    """Letters, digits and underscores: ``a/b`` becomes ``a__b``. A hash distinguishes names that would become equal."""
    slug = _NOT_IN_OPS.sub("_", name.replace("/", "__"))
    return slug if _PLAIN.fullmatch(name) else f"{slug}_{sha256(name.encode()).hexdigest()[:6]}"
