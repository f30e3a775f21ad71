"""A service principal instead of a token: its client id and secret are exchanged for tokens that end."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from support.answers import Answers, Request, answering
from support.managed import ManagedBackend
from support.unity import TOKEN, Unity

from dv_maintenance.cli import main
from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import StorageDeniedError, StorageUnavailableError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.tables import open_table

SECRET = "hush-hush"


@pytest.fixture
def given() -> list[int]:
    """Each token that was given."""
    return []


@pytest.fixture
def tokens(server: Unity, catalogs: Callable[..., None], given: list[int]) -> Iterator[Answers]:
    def give(request: Request) -> tuple[int, object]:
        assert request.path == "/oidc/v1/token"
        assert parse_qs(request.body.decode()) == {"grant_type": ["client_credentials"], "scope": ["all-apis"]}
        if request.headers["authorization"] != f"Basic {b64encode(f'c:{SECRET}'.encode()).decode()}":
            return 401, {"error": "invalid_client"}
        given.append(len(given))
        return 200, {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}

    with answering(give) as made:
        url = f"{made.url}/oidc/v1/token"
        client = {"client_id": "c", "client_secret": SECRET, "oauth2_server_uri": url}
        catalogs(uc={"type": "unity", "uri": server.url, **client})
        yield made


@pytest.fixture
def backend(server: Unity, tokens: Answers, tmp_path: Path) -> ManagedBackend:
    found = ManagedBackend(tmp_path / "t", server)
    found.create()
    found.append("a", [(n, "a", "x") for n in range(1, 6)])
    return found


def test_a_token_is_kept_and_replaced(server: Unity, backend: ManagedBackend, given: list[int]) -> None:
    delete(backend.open(), LocalEngine(1), "id = 2")
    assert given == [0]
    server.faults.append("expired")
    assert purge(backend.open(), LocalEngine(1)).verified
    assert given == [0, 1]
    assert {row[0] for row in backend.rows()} == {1, 3, 4, 5}


@pytest.mark.parametrize(("replays", "then"), [(True, ""), (False, ""), (True, "denied")])
def test_a_token_that_ends_after_an_answer_was_lost(
    server: Unity, backend: ManagedBackend, given: list[int], replays: bool, then: str
) -> None:
    """The commit was ratified. Its repetition got 401, which does not say that nothing happened."""
    server.replays = replays
    version = backend.open().version()
    server.post_faults += ["lost", "expired", then]
    assert delete(backend.open(), LocalEngine(1), "id = 2").rows_deleted == 1
    assert given == [0, 1]
    assert backend.open().version() == version + 1
    assert {row[0] for row in backend.rows()} == {1, 3, 4, 5}


def test_what_is_wrong_with_the_client_is_said(
    backend: ManagedBackend, tokens: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "catalogs.yaml"
    file.write_text(file.read_text().replace(SECRET, "another"))
    with pytest.raises(StorageDeniedError, match="no token to the client") as caught:
        open_table(backend.name)
    assert "client_secret" in str(caught.value.next_step)
    main(["doctor", "uc", "--json"])
    shown = capsys.readouterr().out
    (token,) = (each for each in json.loads(shown)["checks"] if each["name"] == "token")
    assert not token["ok"]
    assert "another" not in shown
    tokens.faults.append((200, {"expires_in": 3600}))
    with pytest.raises(StorageUnavailableError, match="the answer has no token"):
        open_table(backend.name)
