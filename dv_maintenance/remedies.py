"""What to do next, in the words of the reader: flags of a command, keys of a YAML file or a run's config, arguments.

A message is written once and says *which* verb or setting helps. How that is spelled depends on the face through which
the reader works: the command line, Dagster, Airflow or Python. A process has one face: the one that started it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

Face = Literal["cli", "dagster", "airflow", "python"]
Place = Literal["policy", "run", "call"]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb to run. ``options``: as the Python API names them."""

    name: str
    table: str | None = None
    options: tuple[tuple[str, bool | int | str], ...] = ()

    def __str__(self) -> str:
        return self.spelled(face())

    def spelled(self, face: Face, quote: str = "'") -> str:
        if face == "python" and self.name not in _ONLY_COMMANDS:
            first = [] if self.table is None else [repr(self.table)]
            return f"dvm.{self.name}({', '.join(first + [f'{name}={value!r}' for name, value in self.options])})"
        words = ["dvm", self.name, *([] if self.table is None else [self.table])]
        for name, value in self.options:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return f"{quote}{' '.join(words)}{quote}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting to give. ``name``: one of :data:`SETTINGS`, or a storage option."""

    name: str
    value: bool | int | float | str | None = None

    def __str__(self) -> str:
        return self.spelled(face())

    def spelled(self, face: Face) -> str:
        return _SPELLED[face](self)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A sentence with the verbs and settings that it names.

    ``text`` : the sentence in the imperative, with ``{}`` for each of ``parts``.
    """

    text: str
    parts: tuple[Verb | Setting, ...] = ()

    def __str__(self) -> str:
        return self.spelled(face())

    def spelled(self, face: Face) -> str:
        return self.text.format(*(part.spelled(face) for part in self.parts))

    @classmethod
    def of(cls, step: str | Remedy) -> Remedy:
        """A plain sentence as one, too."""
        return step if isinstance(step, Remedy) else cls(step.replace("{", "{{").replace("}", "}}"))

    def then(self, text: str, *parts: Verb | Setting) -> Remedy:
        return Remedy(self.text + text, self.parts + parts)

    def to_json(self) -> list[dict[str, Any]]:
        """The verbs and settings, for programs."""
        return [
            {"verb": part.name, "table": part.table, "options": dict(part.options)}
            if isinstance(part, Verb)
            else {"setting": part.name, "value": part.value}
            for part in self.parts
        ]


def run(verb: str, table: str | None = None, **options: bool | int | str) -> Verb:
    return Verb(verb, table, tuple(options.items()))


def setting(name: str, value: bool | float | str | None = None) -> Setting:
    if name not in SETTINGS:
        raise KeyError(name)
    return Setting(name, value)


def option(name: str, value: str) -> Setting:
    """A storage option."""
    return Setting(name, value)


@dataclass(frozen=True, slots=True)
class _Known:
    """Where the faces take a setting. ``place``: in a table's policy, in what a run is given, or only in a call of the
    command line or of Python.
    """

    flag: str
    place: Place


SETTINGS: Final[Mapping[str, _Known]] = {
    "allow_short_retention": _Known("--allow-short-retention", "run"),
    "clean_log": _Known("--clean-log", "run"),
    "clones": _Known("--protect", "policy"),
    "clones_under": _Known("--clones-under", "policy"),
    "columns": _Known("--columns", "call"),
    "deep": _Known("--deep", "call"),
    "dry_run": _Known("--dry-run", "run"),
    "max_deleted_share": _Known("--max-deleted-share", "policy"),
    "missing_ok": _Known("--missing-ok", "run"),
    "partition_types": _Known("--partition-by", "call"),
    "protected_streams": _Known("--protect-stream", "policy"),
    "protected_versions": _Known("--protect-version", "policy"),
    "purge_first": _Known("--purge-first", "call"),
    "retention": _Known("--retention", "policy"),
    "rewrite": _Known("--rewrite", "call"),
    "storage_options": _Known("--storage-option", "call"),
    "vacuums_over": _Known("--vacuum-over", "run"),
}
"""The settings that messages name, by the key that they have in YAML and in Python."""

_ONLY_COMMANDS: Final = frozenset({"doctor", "engine-sql", "list", "rename-manifests", "scan", "watch"})
"""Verbs that Python has no function for."""


def _flag(given: Setting) -> str:
    if given.name not in SETTINGS:
        return f"--storage-option {given.name}={given.value}"
    flag = SETTINGS[given.name].flag
    return flag if given.value in {None, True} else f"{flag} {given.value}"


def _yaml(given: Setting) -> str:
    if given.name not in SETTINGS:
        return f"{given.name}: {given.value} in the table's storage_options"
    if given.name == "storage_options":
        return "the table's storage_options"
    key = given.name if given.value is None else f"{given.name}: {str(given.value).lower()}"
    return f"{key} in the {'run config' if SETTINGS[given.name].place == 'run' else 'policy of the table'}"


def _operator(given: Setting) -> str:
    if given.name not in SETTINGS:
        return f"{given.name}: {given.value} in the connection of storage_conn_id"
    if given.name == "storage_options":
        return "the connection of storage_conn_id"
    if SETTINGS[given.name].place == "policy":
        return _yaml(given)
    return f"{_flag(given)} of the command line"


def _argument(given: Setting) -> str:
    if given.name not in SETTINGS:
        return f"storage_options={{{given.name!r}: {given.value!r}}}"
    return given.name if given.value is None else f"{given.name}={given.value!r}"


_SPELLED: Final[Mapping[Face, Callable[[Setting], str]]] = {
    "cli": _flag,
    "dagster": _yaml,
    "airflow": _operator,
    "python": _argument,
}

_face: Face = "python"


def face() -> Face:
    """The face of this process."""
    return _face


def speak(name: Face) -> None:
    """Says which face this process has. An orchestrator's face calls this when it is imported."""
    global _face  # noqa: PLW0603 (a process has one, and threads share it)
    _face = name


@contextmanager
def speaking(name: Face) -> Iterator[None]:
    """The same, for a part of a process."""
    before = face()
    speak(name)
    try:
        yield
    finally:
        speak(before)
