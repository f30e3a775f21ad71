"""Arguments are checked while the DAG is parsed, as far as they are no templates: the page then shows the error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from dv_maintenance.testing.delta_builder import DeltaBuilder

HEAD = """
import json, sys
from dv_maintenance.airflow import *
from dv_maintenance.airflow import (
    DvCheckOperator, DvDeleteOperator, DvErasureOperator, DvManifestOperator, DvOptimizeOperator, DvSensor,
    DvVacuumOperator, DvVacuumsOperator,
)
def said(operator, given):
    try:
        globals()[operator](task_id="t", **given)
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return ""
print(json.dumps([said(*each) for each in json.loads(CASES)]))
"""
T = {"table": "s3://lake/orders"}
REFUSED = [
    ("DvCheckOperator", T | {"checks": ["deleted_ratoi"]}, "checks can't be 'deleted_ratoi'"),
    ("DvCheckOperator", T | {"fail_on": "warning"}, "fail_on can't be 'warning'"),
    ("DvOptimizeOperator", T | {"engine": "sparc"}, "engine can't be 'sparc'"),
    ("DvOptimizeOperator", T | {"policy": {"max_deleted_ratoi": 1}}, "max_deleted_ratoi"),
    ("DvOptimizeOperator", T | {"purge": "yes"}, "purge must be true or false"),
    ("DvOptimizeOperator", T | {"partitions": ["2026-11-01"]}, "name no partitions"),
    ("DvOptimizeOperator", {"table": {"path": "x", "polcy": {}}}, "polcy"),
    ("DvOptimizeOperator", {"table": ""}, "path"),
    ("DvManifestOperator", T | {"dry_run": "no"}, "dry_run must be true or false"),
    ("DvVacuumOperator", T | {"guards": {"protected_version": [3]}}, "protected_version"),
    ("DvVacuumsOperator", {"tables_file": "t.yaml", "guards": {"protected_version": [3]}}, "protected_version"),
    ("DvDeleteOperator", T, "exactly one of 'where' and 'keys'"),
    ("DvDeleteOperator", T | {"where": "true", "keys": "k.csv"}, "exactly one of 'where' and 'keys'"),
    ("DvDeleteOperator", T | {"where": "true", "count_only": "yes"}, "count_only must be true or false"),
    ("DvErasureOperator", T | {"where": "true", "purge_all": "no"}, "purge_all must be true or false"),
    ("DvSensor", T | {"jobs": ["optimise"]}, "jobs can't be 'optimise'"),
]
ACCEPTED = [
    ("DvCheckOperator", T | {"checks": ["{{ params.check }}"], "fail_on": None}),
    ("DvCheckOperator", T | {"fail_on": "{{ params.fail_on }}"}),
    ("DvOptimizeOperator", T | {"policy": "{{ params.policy | tojson }}", "purge": "{{ params.purge }}"}),
    ("DvOptimizeOperator", {"table": "orders", "tables_file": "elsewhere.yaml", "partitions": ["2026-11-01"]}),
    ("DvVacuumOperator", T | {"guards": {"retention": "{{ params.retention or '' }}"}}),
    ("DvDeleteOperator", T | {"where": "{{ params.where }}"}),
    ("DvSensor", T | {"jobs": ["optimize"]}),
]


def test_arguments_are_checked_when_the_dag_is_parsed(in_airflow: Callable[[str], str]) -> None:
    asked = [(operator, given) for operator, given, _ in REFUSED] + ACCEPTED
    found = json.loads(in_airflow(f"CASES = {json.dumps(asked)!r}\n{HEAD}").splitlines()[-1])
    for (operator, given, why), text in zip(REFUSED, found[: len(REFUSED)], strict=True):
        assert text.startswith("UsageError"), (operator, given, text)
        assert why in text, (operator, given, text)
    assert found[len(REFUSED) :] == [""] * len(ACCEPTED)


RENDERED = """
import json
from dv_maintenance.airflow.arguments import keys_of, literal, texts
print(json.dumps([
    [literal(each) for each in ("a", "{{ b }}", ["{% c %}"], {"d": "{{ e }}"}, None, 3, object())],
    [texts(each) for each in ("day", "['a', \\"b\\"]", '["2026-11-01"]', "[]", "", ["x"])],
    [keys_of(each) for each in (None, "{}", '{"a": 1, "b": null}', {"retention": ""})],
]))
"""


def test_what_templates_render_to(in_airflow: Callable[[str], str]) -> None:
    assert json.loads(in_airflow(RENDERED).splitlines()[-1]) == [
        [True, False, False, False, True, True, False],
        [["day"], ["a", "b"], ["2026-11-01"], [], [""], ["x"]],
        [{}, {}, {"a": 1}, {}],
    ]


BY_FUNCTION = """
import json
from airflow.sdk import task
from dv_maintenance.airflow.decorators import dv_check, dv_optimize

class Instance:
    try_number, map_index = 1, -1
    def xcom_push(self, **more): pass

def said(returned, decorator=dv_check, **given):
    made = decorator(task_id="t", **given)(lambda: returned)().operator
    try:
        return type(made).execute.__wrapped__(made, {"ti": Instance()})["reason"]
    except Exception as error:
        return str(error)

print(json.dumps([
    task.dv_check is not None and task.dv_erasure is not None,
    said("orders"),
    said({"path": "orders"}),
    said(None),
    said({"checks": ["readable"]}),
    said({"checks": ["readible"]}, table="orders"),
    said({"table": "orders", "checks": "{{ ti }}"}),
    said({"table": "orders", "policy": {"max_deleted_ratoi": 1}}, dv_optimize),
]))
"""


def test_what_functions_may_return(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    DeltaBuilder(str(tmp_path / "orders")).create(pa.schema([("id", pa.int64())]))
    found = json.loads(in_airflow(BY_FUNCTION).splitlines()[-1])
    there, good, mapping, nothing, no_table, misspelled, template, policy = found
    assert there
    assert good == "All checks passed."
    assert "returned {'path': 'orders'}. Next: return a table's path, or a mapping of these arguments: " in mapping
    assert "returned None" in nothing
    assert "returned no table" in no_table
    assert "checks can't be 'readible'" in misspelled
    assert "checks can't be '{{ ti }}'" in template
    assert "max_deleted_ratoi" in policy
