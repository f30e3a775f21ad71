"""No secret shows: not in errors, their causes, tracebacks, JSON, metadata, representations or pickles' names."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from dv_maintenance.cli import main
from dv_maintenance.config import parse_yaml
from dv_maintenance.errors import StorageError, UsageError, redacted
from dv_maintenance.storage import Storage

CANARY = "CaNaRy5eCrEt"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"https://me:{CANARY}@host/a", "https://***@host/a"),
        (f'GET "https://h/a?sv=1&sig={CANARY}%2F" failed', 'GET "https://h/a?***" failed'),
        (f"https://h/a%3Fsig={CANARY}/_delta_log, and", "https://h/a%3F*** and"),
        (f"sc://h:1/;token=x https://h?a={CANARY} s3://b/k", "sc://h:1/;token=x https://h?*** s3://b/k"),
        ("file:///t/p=%3Fa/f?", "file:///t/p=%3Fa/f?"),
        ("abfss://container@account.dfs.core.windows.net/t", "abfss://container@account.dfs.core.windows.net/t"),
        ("is it so? a=b", "is it so? a=b"),
    ],
)
def test_what_is_redacted(text: str, clean: str) -> None:
    assert redacted(text) == clean


@pytest.mark.parametrize(
    "place",
    [
        f"https://account.invalid/c/t?sv=1&sig={CANARY}",
        f"HTTPS://account.invalid/c/t?{CANARY}",
        f"https://me:{CANARY}@host.invalid/t",
        f"s3://key:{CANARY}@bucket/t",
        f"nosuch://u:{CANARY}@x/t?sig={CANARY}",
    ],
)
@pytest.mark.parametrize(
    "verb", ["health", "read", "plan", "purge", "vacuum", "manifest", "history", "doctor", "restore"]
)
def test_places_with_secrets_are_refused_without_them(
    place: str, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVM_DEBUG", "1")
    more = ["--version", "1"] if verb == "restore" else []
    assert main([verb, place, "--json", *more]) in {1, 2}
    out, err = capsys.readouterr()
    assert CANARY not in out + err
    assert json.loads(out)


def test_what_a_storage_client_said_is_a_redacted_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))

    def refusing(*_: Any) -> None:
        raise RuntimeError(f"error sending request for url (https://h/t?sv=1&sig={CANARY})")

    monkeypatch.setattr(storage.access, "read", refusing)
    with pytest.raises(StorageError) as caught:
        storage.get("f")
    shown = "".join(traceback.format_exception(caught.value))
    assert CANARY not in shown
    assert "RuntimeError: error sending request for url (https://h/t?***" in shown, "but the rest of it is of use"


def test_an_error_shows_no_query_wherever_it_came_in() -> None:
    secret = f"https://h/t?sig={CANARY}"
    error = StorageError(f"no {secret}", table=secret, done=f"a {secret}", next_step=f"b {secret}")
    assert CANARY not in str(error) + json.dumps(error.to_json())


@pytest.mark.parametrize(
    "value",
    [
        f"*{CANARY}",
        f"!{CANARY} x",
        f"!!{CANARY} x",
        f"&{CANARY} *no{CANARY}",
        f"%{CANARY}",
        f"@{CANARY}",
        f"`{CANARY}",
        f"|{CANARY}",
        f'"\\q{CANARY}"',
        f'"{CANARY}',
        f"{{{CANARY}",
        f"{CANARY}: {CANARY}: x",
    ],
)
def test_no_value_of_a_settings_file_is_quoted(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_yaml(f"defaults:\n  storage_options:\n    secret: {value}\n", "tables.yaml")
    shown = "".join(traceback.format_exception(caught.value))
    assert "tables.yaml line" in str(caught.value)
    assert CANARY not in shown.replace(f'value = "{value}"', "")
