"""Kinds of catalogs, by the ``type`` of their settings.

A kind is a module. Those of this package are in this folder. Another package adds its own with an entry point in the
group ``dv_maintenance.catalogs``: its name is the type, its value the module. :class:`CatalogKind` says what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dv_maintenance.config import expand_env

if TYPE_CHECKING:
    from dv_maintenance.tables.find import FoundTable
    from dv_maintenance.tables.registry import Location

_ENTRY_POINTS: Final = "dv_maintenance.catalogs"
_HERE: Final = ("unity", "glue", "hive", "polaris", "gravitino", "paimon", "lance", "spark")


class CatalogSettings(BaseModel):
    """How to reach a catalog. Each kind adds its own keys; those with secrets have ``Field(repr=False)``.

    Texts may have environment variables, as ``${NAME}``. Validated as this class, settings become those of the kind
    that ``type`` names.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str

    @field_validator("*", mode="before")
    @classmethod
    def _expanded(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: cls._expanded(each) for key, each in value.items()}
        return expand_env(value) if isinstance(value, str) else value

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Any:
        if cls is not CatalogSettings or isinstance(values, CatalogSettings):
            return handler(values)
        if not isinstance(values, Mapping):
            raise ValueError("must hold keys and values, 'type' among them")  # noqa: TRY004 - an error of validation
        try:
            kind = kind_called(str(values.get("type", "")))
        except ValueError as error:
            problem = PydanticCustomError("type_of_catalog", "{problem}", {"problem": str(error)})
            details = InitErrorDetails(type=problem, loc=("type",), input=None)
            raise ValidationError.from_exception_data(cls.__name__, [details]) from None
        return kind.Settings.model_validate(values)


class CatalogKind(Protocol):
    """What the module of a kind has. A kind whose catalogs vend keys for the files of tables also has ``vend``, see
    ``dv_maintenance.credentials``. ``rights(name, settings, format)`` yields what a user may do with a table that was
    found, as ``examination.Examined``. A kind with more to say has ``examined(name, settings)`` instead, for a catalog
    or a table. ``expected(name, settings)`` is called when a file with such a catalog is loaded.

    Settings : its subclass of :class:`CatalogSettings`.
    """

    Settings: type[CatalogSettings]

    def located(self, name: str, settings: Any, options: Mapping[str, str]) -> tuple[str, Location]:
        """Format and location of the table that users call ``name``, with the catalog's own name in front. The handle
        of the location is a ``NamedTable`` if commits are left to the files. ``options`` of the storage go before those
        of the catalog.

        Raises
        ------
        UsageError : the name has too many or too few parts, or something that the catalog needs is missing.
        TableNotFoundError : there is no such table.
        UnsupportedFeatureError : it is a view, or anything else that no known format reads; with its kind.
        StorageDeniedError, StorageUnavailableError : the catalog refused, or did not answer.
        """

    def listed(self, name: str, settings: Any) -> Iterator[FoundTable]:
        """Everything in the schema that users call ``name``. The path of each is its name there, in backticks where it
        needs them; ``left_alone`` says why one is not a table to maintain. A last part ``*`` stands for every schema;
        the paths begin with the schema's name then. Raises as :meth:`located`.
        """


def kinds() -> tuple[str, ...]:
    """The types of all kinds, those of this package first."""
    return (*_HERE, *(each for each in _elsewhere() if each not in _HERE))


def kind_called(type: str) -> Any:
    """The module of a kind, a :class:`CatalogKind`. Raises ValueError for an unknown type."""
    if type in _HERE:
        return import_module(f"dv_maintenance.catalogs.{type}")
    found = _elsewhere().get(type)
    if found is None:
        raise ValueError(f"unknown type of catalog {type!r}: use one of {', '.join(kinds())}")
    return found.load()


@cache
def _elsewhere() -> Mapping[str, Any]:
    from importlib.metadata import entry_points

    return {each.name: each for each in entry_points(group=_ENTRY_POINTS)}
