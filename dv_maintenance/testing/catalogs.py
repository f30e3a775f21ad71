"""What every kind of catalog promises, as tests; see ``dv_maintenance.catalogs.kinds``.

A kind's test file subclasses :class:`CatalogContract` and gives it a catalog::

    class TestShelf(CatalogContract):
        @pytest.fixture
        def case(self) -> CatalogCase:
            return CatalogCase("shelf", {"folder": "/srv/shelf"}, schema="shop", table="orders")
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from dv_maintenance.catalogs import from_plain, listed, located
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.errors import StorageUnavailableError, TableNotFoundError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.registry import known_format, quoted


@dataclass(frozen=True)
class CatalogCase:
    """A catalog that has a table.

    settings : without the type.
    schema, table : names of a schema, and of a table in it, with backticks where they need them. The schema is "" if
        the table has none.
    secrets : texts of the settings that nothing may show.
    unreachable : settings that lead nowhere; ``None`` for a kind that asks nobody.
    """

    type: str
    settings: Mapping[str, Any]
    schema: str
    table: str
    secrets: tuple[str, ...] = ()
    unreachable: Mapping[str, Any] | None = field(default=None)

    @property
    def name(self) -> str:
        return ".".join(filter(None, ("mine", self.schema, self.table)))

    @property
    def catalogs(self) -> Mapping[str, CatalogSettings]:
        return from_plain({"mine": {"type": self.type, **self.settings}}, "the case")


class CatalogContract:
    """The behaviour that all kinds have in common."""

    @pytest.fixture
    def case(self) -> CatalogCase:
        """For subclasses to give."""
        raise NotImplementedError

    def test_a_table_has_a_format_and_a_place(self, case: CatalogCase) -> None:
        found = located(case.name, {}, case.catalogs)
        assert found is not None
        name, location = found
        assert known_format(name) is not None
        assert location.catalog is not None
        assert location.catalog.name == case.name
        again = located(case.name, {}, case.catalogs)
        assert again is not None
        assert again[1].catalog == location.catalog, "the same table, as long as nobody creates it again"

    def test_its_storage_reaches_other_processes(self, case: CatalogCase) -> None:
        found = located(case.name, {}, case.catalogs)
        assert found is not None
        storage: Storage = pickle.loads(pickle.dumps(found[1].storage))  # noqa: S301 - our own
        assert (storage.uri, storage.options) == (found[1].storage.uri, found[1].storage.options)

    def test_options_of_the_caller_go_first(self, case: CatalogCase) -> None:
        found = located(case.name, {"aws_region": "mine"}, case.catalogs)
        assert found is not None
        assert found[1].storage.options["aws_region"] == "mine"

    @pytest.mark.parametrize("everywhere", [False, True])
    def test_what_is_listed_can_be_named(self, case: CatalogCase, everywhere: bool) -> None:
        if not case.schema and not everywhere:
            pytest.skip("it has no schema")
        schema = "mine.*" if everywhere else f"mine.{case.schema}"
        known = listed(schema, case.catalogs)
        paths = {each.path for each in known if not each.left_alone}
        assert (".".join(filter(None, (case.schema, case.table))) if everywhere else case.table) in paths
        for each in known:
            assert bool(each.format) != bool(each.left_alone)
        for path in paths:
            assert located(f"mine.{path}" if everywhere else f"mine.{case.schema}.{path}", {}, case.catalogs)

    def test_an_unknown_table_is_said(self, case: CatalogCase) -> None:
        name = ".".join(filter(None, ("mine", case.schema, quoted(["no such.table"]))))
        with pytest.raises(TableNotFoundError) as caught:
            located(name, {}, case.catalogs)
        assert str(caught.value).startswith(f"{name}: ")
        assert caught.value.next_step

    def test_secrets_do_not_show(self, case: CatalogCase) -> None:
        settings = case.catalogs["mine"]
        found = located(case.name, {}, case.catalogs)
        for secret in case.secrets:
            assert secret not in f"{settings!r}{settings}{found!r}"

    def test_an_unknown_key_is_said(self, case: CatalogCase) -> None:
        with pytest.raises(UsageError, match=r"catalogs\.mine\.no_such_key: unknown key"):
            from_plain({"mine": {"type": case.type, **case.settings, "no_such_key": 1}}, "the case")

    def test_nobody_answers(self, case: CatalogCase) -> None:
        if case.unreachable is None:
            pytest.skip("it asks nobody")
        nowhere = from_plain({"mine": {"type": case.type, **case.unreachable}}, "the case")
        with pytest.raises(StorageUnavailableError) as caught:
            located(case.name, {}, nowhere)
        assert str(caught.value).startswith(f"{case.name}: ")
        for secret in case.secrets:
            assert secret not in f"{caught.value}{caught.value.next_step}"
