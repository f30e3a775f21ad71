"""Connections of Airflow's own providers: where Spark is, and the options of a table's storage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dv_maintenance.access import Access

Script = Callable[[str], str]

SPARK = """
import json
from airflow.sdk import Connection
from dv_maintenance.airflow.spark import spark_place
from dv_maintenance.errors import UsageError

def place(settings=None, **connection):
    try:
        return spark_place(Connection(conn_id="here", **connection) if connection else None, settings or {})
    except UsageError as error:
        return str(error)

def extra(**settings):
    return json.dumps(settings)

print(json.dumps({
    "none": place(),
    "settings": place({"spark.x": True}),
    "master": place(conn_type="spark", host="spark://there", port=7077, extra=extra(**{"spark.a": 1, "queue": "q"})),
    "override": place({"spark.a": 2}, conn_type="spark", host="yarn", extra=extra(**{"spark.a": 1})),
    "moved": place({"spark.master": "local[2]"}, conn_type="spark", host="yarn"),
    "nowhere": place(conn_type="spark"),
    "remote": place(conn_type="spark_connect", host="there", port=15002),
    "url": place(conn_type="spark_connect", host="sc://there", login="me", password="a;b/c", extra=extra(use_ssl=True)),
    "other": place(conn_type="http", host="there"),
}))
"""


def test_where_spark_is(in_airflow: Script) -> None:
    found = json.loads(in_airflow(SPARK).splitlines()[-1])
    assert found == {
        "none": ["local[*]", {}],
        "settings": ["local[*]", {"spark.x": "true"}],
        "master": ["spark://there:7077", {"spark.a": "1"}],
        "override": ["yarn", {"spark.a": "2"}],
        "moved": ["local[2]", {}],
        "nowhere": ["local[*]", {}],
        "remote": ["sc://there:15002/", {}],
        "url": ["sc://there/;user_id=me;token=a%3Bb%2Fc;use_ssl=true", {}],
        "other": found["other"],
    }
    assert "connection here is of the type 'http'" in found["other"]
    assert "spark or spark_connect" in found["other"]


STORAGE = """
import json
from airflow.sdk import Connection
from dv_maintenance.airflow.hook import storage_options
from dv_maintenance.errors import UsageError

def options(**connection):
    extra = json.dumps(connection.pop("extra", {}))
    try:
        return storage_options(Connection(conn_id="lake", extra=extra, **connection))
    except UsageError as error:
        return str(error)

print(json.dumps([options(**each) for each in json.loads(%r)]))
"""
KEY = {
    "type": "service_account",
    "private_key": generate_private_key(65537, 2048)
    .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    .decode(),
    "private_key_id": "1",
    "client_email": "a@example.com",
    "client_id": "2",
}
ACCOUNT = {"azure_storage_account_name": "lake"}
CASES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("", {"conn_type": "dvstorage", "extra": {"aws_region": "x", "n": 1}}, {"aws_region": "x", "n": "1"}),
    ("", {"conn_type": "dv_storage", "extra": {"aws_region": "x"}}, {"aws_region": "x"}),
    (
        "s3",
        {"conn_type": "aws", "login": "id", "password": "secret", "extra": {"region_name": "eu-central-1"}},
        {"aws_access_key_id": "id", "aws_secret_access_key": "secret", "aws_region": "eu-central-1"},
    ),
    (
        "s3",
        {"conn_type": "aws", "extra": {"endpoint_url": "http://127.0.0.1:9000", "aws_session_token": "t"}},
        {"aws_session_token": "t", "aws_endpoint": "http://127.0.0.1:9000", "allow_http": "true"},
    ),
    ("s3", {"conn_type": "aws"}, {}),
    (
        "gs",
        {"conn_type": "google_cloud_platform", "extra": {"extra__google_cloud_platform__key_path": "/key.json"}},
        {"google_service_account": "/key.json"},
    ),
    (
        "gs",
        {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": KEY}},
        {"google_service_account_key": json.dumps(KEY, separators=(",", ":"))},
    ),
    (
        "az",
        {"conn_type": "wasb", "login": "lake", "password": "a2V5"},
        ACCOUNT | {"azure_storage_account_key": "a2V5"},
    ),
    (
        "az",
        {"conn_type": "wasb", "extra": {"connection_string": "AccountName=lake;AccountKey=a2V5MTI="}},
        ACCOUNT | {"azure_storage_account_key": "a2V5MTI="},
    ),
    (
        "az",
        {"conn_type": "wasb", "login": "lake", "extra": {"sas_token": "sig=1"}},
        ACCOUNT | {"azure_storage_sas_key": "sig=1"},
    ),
    (
        "az",
        {
            "conn_type": "adls",
            "host": "lake.dfs.example.net",
            "login": "client",
            "password": "secret",
            "extra": {"tenant_id": "tenant"},
        },
        ACCOUNT
        | {
            "azure_storage_tenant_id": "tenant",
            "azure_storage_client_id": "client",
            "azure_storage_client_secret": "secret",
        },
    ),
]
REFUSED = [
    ({"conn_type": "aws", "extra": {"role_arn": "arn:x", "password": "hidden"}}, "sets role_arn, which only its"),
    (
        {"conn_type": "google_cloud_platform", "extra": {"impersonation_chain": "a"}},
        "pip install apache-airflow-providers-google",
    ),
    ({"conn_type": "postgres"}, "is of the type 'postgres'"),
    ({"conn_type": "dvstorage", "extra": [1]}, "not a JSON object"),
]


def test_options_of_a_storage(in_airflow: Script) -> None:
    asked = [*(connection for _, connection, _ in CASES), *(connection for connection, _ in REFUSED)]
    found = json.loads(in_airflow(STORAGE % json.dumps(asked)).splitlines()[-1])
    assert found[: len(CASES)] == [options for _, _, options in CASES]
    for (_, why), text in zip(REFUSED, found[len(CASES) :], strict=True):
        assert why in text
        assert "hidden" not in text


@pytest.mark.parametrize(
    ("kind", "options"), [(kind, options) for kind, _, options in CASES if kind and "/key.json" not in str(options)]
)
def test_the_client_of_the_storage_knows_every_option(kind: str, options: dict[str, str]) -> None:
    assert Access().open_store(f"{kind}://bucket", options)
    with pytest.raises(Exception, match="no_such_option"):
        Access().open_store(f"{kind}://bucket", options | {"no_such_option": "1"})


HOOK = """
import json, os, sys
from types import ModuleType, SimpleNamespace
from airflow.sdk import Connection
from dv_maintenance.airflow import DvHook, DvSensor
from dv_maintenance.airflow.hook import storage_options

tested = {}
for name, kind, host, extra in (
    ("there", "dvstorage", "file://" + os.getcwd(), {}),
    ("nowhere", "dvstorage", None, {"aws_region": "x"}),
    ("misspelled", "dvstorage", "s3://lake/x", {"aws_regoin": "x", "aws_secret_access_key": "hush"}),
    ("other", "postgres", None, {}),
):
    os.environ[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps({"conn_type": kind, "host": host, "extra": extra})
    tested[name] = DvHook(name).test_connection()

# What the provider's hook obtains for a role.
module = ModuleType("airflow.providers.amazon.aws.hooks.base_aws")
class AwsGenericHook:
    region_name = "eu-central-1"
    def __init__(self, aws_conn_id, client_type): self.asked = aws_conn_id, client_type
    def get_credentials(self): return SimpleNamespace(access_key=self.asked[0], secret_key="s", token="t")
module.AwsGenericHook = AwsGenericHook
path = "airflow.providers.amazon.aws.hooks"
for at in ("airflow.providers.amazon", "airflow.providers.amazon.aws", path):
    sys.modules[at] = ModuleType(at)
sys.modules[module.__name__] = module
role = json.dumps({"role_arn": "arn:x", "endpoint_url": "https://s3.example.net"})
session = storage_options(Connection(conn_id="lake", conn_type="aws", login="id", password="secret", extra=role))

# What Google's hook obtains for whom it impersonates; it fails with errors of its own.
module = ModuleType("airflow.providers.google.common.hooks.base_google")
class GoogleBaseHook:
    def __init__(self, gcp_conn_id): self.asked = gcp_conn_id
    def get_credentials(self):
        if self.asked == "denied": raise LookupError("no network")
        return SimpleNamespace(token="of " + self.asked, refresh=lambda request: None)
module.GoogleBaseHook = GoogleBaseHook
for at in ("airflow.providers.google", "airflow.providers.google.common", "airflow.providers.google.common.hooks",
           "google", "google.auth", "google.auth.transport"):
    sys.modules[at] = ModuleType(at)
sys.modules[module.__name__] = module
sys.modules["google.auth.transport.requests"] = SimpleNamespace(Request=lambda: None)
chain = {"impersonation_chain": "a@example.com", "keyfile_dict": "{}", "key_path": "/key.json"}
denied = {"conn_type": "google_cloud_platform", "host": "gs://lake", "extra": chain}
os.environ["AIRFLOW_CONN_DENIED"] = json.dumps(denied)
tested["denied"] = DvHook("denied").test_connection()
token = storage_options(Connection(conn_id="lake", conn_type="google_cloud_platform", extra=json.dumps(chain)))

waits = []
for default in ("False", "True"):
    os.environ["AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"] = default
    waits.append(DvSensor(task_id="due" + default, table="orders").deferrable)
print(json.dumps([tested, session, token, waits]))
"""


def test_connections_are_tested_roles_assumed_and_the_default_of_waiting_followed(in_airflow: Script) -> None:
    text = in_airflow(HOOK)
    tested, session, token, waits = json.loads(text.splitlines()[-1])
    assert {name: good for name, (good, _) in tested.items()} == {
        "there": True,
        "nowhere": True,
        "misspelled": False,
        "other": False,
        "denied": False,
    }
    assert tested["denied"][1].startswith("LookupError: ")
    assert token == {"google_bearer_token": "of lake"}, "nothing of the key"
    assert "unknown storage option 'aws_regoin'" in tested["misspelled"][1]
    assert "hush" not in text
    assert session == {
        "aws_access_key_id": "lake",
        "aws_secret_access_key": "s",
        "aws_session_token": "t",
        "aws_region": "eu-central-1",
        "aws_endpoint": "https://s3.example.net",
    }
    assert waits == [False, True]


CONNECTIONS = """
import json, os
from dv_maintenance.airflow import dv_maintenance_dags
os.environ["AIRFLOW_CONN_LAKE"] = '{"conn_type": "aws"}'
os.environ["AIRFLOW_CONN_OTHER"] = '{"conn_type": "http"}'
def said(**given):
    try:
        return dv_maintenance_dags("tables.yaml", **given)[0].doc_md
    except Exception as error:
        return f"{type(error).__name__} {error}"
print(json.dumps([said(), said(storage_conn_id="lake"), said(spark_conn_id="nowhere"), said(storage_conn_id="other"),
                  said(spark_conn_id="lake")]))
"""


def test_a_missing_connection_shows_in_the_page_and_a_wrong_one_is_an_error(in_airflow: Script, tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text("tables: [{path: orders}]\n")
    none, good, missing, other, spark = json.loads(in_airflow(CONNECTIONS).splitlines()[-1])
    assert (none, good) == (None, None)
    assert missing.startswith("There is no connection `nowhere`")
    assert other.startswith("UsageError the type of connection other can't be 'http'")
    assert "choose from spark, spark_connect" in spark
