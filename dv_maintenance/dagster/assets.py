"""One table as Dagster sees it: the table itself, observed, and what keeps it in shape below it.

``<table>`` is an observable source asset. Its data version is the last version that changed what a query returns, so
maintenance wakes nobody downstream. ``<table>/dv/optimize``, ``dv/vacuum`` and ``dv/manifest`` are graph assets; their
ops call ``dv_maintenance.maintenance`` and decide nothing.
"""

from __future__ import annotations
