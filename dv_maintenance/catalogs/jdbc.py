"""Queries on the database of a JDBC catalog, without Java."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final
from urllib.parse import quote, urlsplit

from dv_maintenance.errors import RefusedError, StorageUnavailableError

URI: Final = r"jdbc:(?:sqlite:|mysql://|postgresql://)"
"""How the URIs begin that are understood here."""


def rows(
    name: str, uri: str, user: str | None, password: str | None, table: str, query: str, *arguments: str
) -> list[Mapping[str, Any]]:
    """The rows of a query, by their columns.

    name : of what is looked for, for errors.
    table : that the query reads, for errors.

    Raises
    ------
    RefusedError : the driver of the database is not installed.
    StorageUnavailableError : anything else went wrong.
    """
    uri = uri.removeprefix("jdbc:")
    driver = urlsplit(uri).scheme
    try:
        with closing(_CONNECT[driver](uri, user, password)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(query if driver == "sqlite" else query.replace("?", "%s"), arguments)
            columns = [each[0] for each in cursor.description]
            return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    except ImportError as error:
        raise RefusedError(
            f"{name}: the driver of the catalog's database is not installed ({error})",
            next_step=f"install {error.name or 'it'}",
        ) from error
    except Exception as error:
        # Its text may have parts of the settings.
        raise StorageUnavailableError(
            f"{name}: the database of the catalog did not answer as expected ({type(error).__name__})",
            next_step=f"check the catalog's uri, user and password, and that the database has the table {table}",
        ) from error


def _sqlite(uri: str, user: str | None, password: str | None) -> Any:
    del user, password
    place = uri.removeprefix("sqlite:").removeprefix("file:").partition("?")[0]
    # Not created if it is missing.
    return sqlite3.connect(f"file:{quote(place)}?mode=ro", uri=True)


def _postgresql(uri: str, user: str | None, password: str | None) -> Any:
    import psycopg  # type: ignore[import-not-found,unused-ignore]

    keys = {"user": user, "password": password}
    return psycopg.connect(uri, connect_timeout=10, **{key: value for key, value in keys.items() if value})


def _mysql(uri: str, user: str | None, password: str | None) -> Any:
    import pymysql  # type: ignore[import-not-found,import-untyped,unused-ignore]

    parts = urlsplit(uri)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=user or parts.username,
        password=password or parts.password or "",
        database=parts.path.lstrip("/"),
        connect_timeout=10,
    )


_CONNECT: Final = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}
