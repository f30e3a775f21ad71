"""Settings as people write them: sizes, durations, YAML files, and errors that name the key, the file and the line.

This module knows neither policies nor tables. The models live with the code that uses them
(``maintenance.planning.policy``, ``service.tables_file``) and are validated here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, PlainSerializer, ValidationError

from dv_maintenance.errors import UsageError
from dv_maintenance.units import format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    import yaml

_MAX_YAML_BYTES = 1 << 20
# Aliases can expand a small file to a huge document ("billion laughs"); this limits the expanded values.
_MAX_YAML_NODES = 100_000

ModelT = TypeVar("ModelT", bound=BaseModel)
Location = tuple[str | int, ...]

Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=int | str)]
Duration = Annotated[
    int,
    BeforeValidator(parse_duration, json_schema_input_type=str),
    PlainSerializer(format_duration, return_type=str),
]


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data and where it came from: ``lines`` has the line (from 1) of each key path."""

    data: Any
    source: str
    lines: Mapping[Location, int] = field(default_factory=dict)

    def where(self, location: Sequence[str | int]) -> str:
        """``policy.yaml line 3``: the line of the key, or of the closest one above it that the file has."""
        for end in range(len(location), -1, -1):
            line = self.lines.get(tuple(location[:end]))
            if line is not None:
                return f"{self.source} line {line}"
        return self.source


def load_yaml(path: str) -> Document:
    """A YAML file of one document as plain data, with lines. Raises UsageError."""
    return parse_yaml(_read(path), source=path)


def load_documents(path: str) -> list[Document]:
    """Every document of a YAML file, at least one; see :func:`load_yaml`."""
    return _parsed(_read(path), path, many=True) or [Document(None, path)]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_YAML_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", next_step="check the path") from error
    if len(text) > _MAX_YAML_BYTES:
        raise UsageError(f"{path} is larger than {format_size(_MAX_YAML_BYTES)}, too large for a settings file")
    return text


def parse_yaml(text: bytes | str, source: str) -> Document:
    """See :func:`load_yaml`. Refuses tags that build Python objects, and duplicate keys."""
    return next(iter(_parsed(text, source, many=False)), Document(None, source))


def _parsed(text: bytes | str, source: str, *, many: bool) -> list[Document]:
    import yaml

    found: list[Document] = []
    seen = [0]
    try:
        loader = yaml.SafeLoader(text)
        try:
            while loader.check_node():
                root = loader.get_node()
                if root is None:
                    break
                if found and not many:
                    line = root.start_mark.line + 1
                    raise UsageError(f"{source} line {line}: a second document begins here", next_step="split the file")
                lines: dict[Location, int] = {}
                _walk(root, (), lines, seen, source)
                found.append(Document(loader.construct_document(root), source, lines))
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, ValueError, UnicodeDecodeError) as error:
        if isinstance(error, UsageError):
            raise
        mark = getattr(error, "problem_mark", None)
        at = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        # The parser's error quotes whole lines, which may hold secrets: only its problem is passed on.
        problem = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", problem)
        raise UsageError(
            f"{source}{at} is not plain YAML: {problem}",
            next_step="put values that begin with * & ! | > % @ or ` in quotation marks",
        ) from None
    return found


def _walk(node: yaml.Node, location: Location, lines: dict[Location, int], seen: list[int], source: str) -> None:
    """Record the line of every key path. Refuse duplicate keys, and documents that aliases expand beyond the limit."""
    import yaml

    seen[0] += 1
    if seen[0] > _MAX_YAML_NODES:
        raise UsageError(f"{source} expands to more than {_MAX_YAML_NODES:,} values")
    lines.setdefault(location, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in keys:
                raise UsageError(f"{source} line {line}: key {name!r} is given twice")
            keys.add(name)
            lines[(*location, name)] = line
            _walk(value, (*location, name), lines, seen, source)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*location, index), lines, seen, source)


def validate(model: type[ModelT], document: Document, *, what: str) -> ModelT:
    """The document as a model. Raises UsageError that names each bad key with its file and line, never its value."""
    data = {} if document.data is None else document.data
    if not isinstance(data, Mapping):
        raise UsageError(f"{what}: {document.where(())} must hold keys and values, not {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = [_problem(detail, document, model) for detail in details]
        raise UsageError(f"{what}: " + "; ".join(problems)) from None


def _problem(detail: Any, document: Document, model: type[BaseModel]) -> str:
    location: Location = detail["loc"]
    key = ".".join(map(str, location)) or "the whole"
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = "unknown key" + _meant(
            str(location[-1]), _keys_at(model, location[:-1]), all_of_them=len(location) == 1
        )
    return f"{key}: {message} ({document.where(location)})"


def _meant(key: str, known: Sequence[str], *, all_of_them: bool) -> str:
    near = get_close_matches(key.lower(), known, n=1)
    if near:
        return f": did you mean {near[0]}?"
    return f" (known keys: {', '.join(sorted(known))})" if known and all_of_them else ""


def _keys_at(model: Any, location: Location) -> list[str]:
    """The keys of the model that a key path leads to; none if it leads to something else."""
    for step in location:
        if isinstance(step, int):
            continue
        field_ = model.model_fields.get(step)
        model = None if field_ is None else next(_models_in(field_.annotation), None)
        if model is None:
            return []
    return [each.alias or name for name, each in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)


def expand_env(text: str) -> str:
    """Replace ``${NAME}`` with that environment variable. Raises ValueError if it is not set; never shows a value."""

    def value_of(match: re.Match[str]) -> str:
        try:
            return os.environ[match[1]]
        except KeyError:
            raise ValueError(f"environment variable {match[1]} is not set") from None

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", value_of, text)
