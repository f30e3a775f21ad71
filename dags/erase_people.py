"""A DAG by hand: erase a list of customers from several tables, then check each. Trigger it with a configuration."""

import os
from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from dv_maintenance.airflow import DvCheckOperator, DvErasureOperator

FILE = os.environ["DVM_TABLES"]
TABLES = ["demo/orders"]

with DAG(
    "erase_people",
    description="Deletes rows by keys, purges their files, and says when the last bytes can go.",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    # Not `keys`: `params.keys` in a template is a method of Python's dict.
    params={
        "file": Param("erase.parquet", type="string", description="Path or URI of the keys: Parquet, CSV or JSON"),
        "on": Param("customer", type="string", description="Their column, in the file and in the tables"),
    },
    tags=["dv_maintenance"],
) as dag:
    erase = DvErasureOperator.partial(
        task_id="erase", tables_file=FILE, keys="{{ params.file }}", on=["{{ params.on }}"]
    ).expand(table=TABLES)
    check = DvCheckOperator.partial(task_id="check", tables_file=FILE, fail_on="warn").expand(table=TABLES)
    erase >> check
