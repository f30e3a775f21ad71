"""Pages of the site that are made from the code, so that they can't disagree with it.

A hook of MkDocs: see ``hooks`` in mkdocs.yml.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

_ROOT = Path(__file__).parents[1]
# Pages of the site from the repository's root.
_FROM_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(((?:\.\./)*images)/([\w-]+\.png)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that are no files of docs/."""
    pages = {
        "reference/commands.md": commands(),
        "reference/policy.md": policy(),
        "reference/tables-file.md": tables_file(),
        "reference/python.md": python(Path(config.docs_dir, "reference", "api.md").read_text(encoding="utf-8")),
        **{name: (_ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](") for name in _FROM_ROOT},
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to the repository's root stay in the site, and a picture is that of the reader's theme."""
    del page, config

    def themed(match: re.Match[str]) -> str:
        text, folder, name = match.groups()
        if files.get_file_from_path(f"images/dark/{name}") is None:
            return match[0]
        return f"![{text}]({folder}/{name}#only-light)\n![{text}]({folder}/dark/{name}#only-dark)"

    for name in _FROM_ROOT:
        markdown = re.sub(rf"\]\((\.\./)*\.\./{re.escape(name)}", rf"](\g<1>{name}", markdown)
    return _PICTURE.sub(themed, markdown)


# -- the command line --------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every verb's ``--help``."""
    listed = re.findall(r"^    ([a-z][a-z-]+)", helped(), re.MULTILINE)
    parts = ["# Every verb and option\n\nMade from the parser of `dvm`. What they are for: [command line](cli.md)."]
    parts += [f"## {verb}\n\n```text\n{helped(verb)}```" for verb in listed]
    return "\n\n".join(parts)


def helped(*words: str) -> str:
    from dv_maintenance.cli.parser import parse

    os.environ |= {"COLUMNS": "110", "NO_COLOR": "1"}
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        parse([*words, "--help"])
    return out.getvalue()


# -- YAML --------------------------------------------------------------------------------------------------------------


def policy() -> str:
    from dv_maintenance.maintenance.planning import policy as module

    models = [module.Policy, module.CheckLimits, module.Prices]
    link = "[policy](../guides/policy.md)"
    head = f"# Every key of a policy\n\nMade from the models that read it. When to set which: {link}."
    return "\n\n".join([head, *map(table, models)])


def tables_file() -> str:
    from dv_maintenance.service import settings, tables_file

    models: list[type[BaseModel]] = [
        tables_file.WatchConfig,
        tables_file.Entry,
        tables_file.TableSettings,
        tables_file.TablesFolder,
        settings.Schedule,
        settings.Sensor,
        tables_file.Window,
        settings.Spark,
        settings.Reads,
        settings.NamedAsset,
        settings.Report,
    ]
    head = (
        "# Every key of defs.yaml and tables.yaml\n\nMade from the models that read them. How they are used: "
        "[many tables](../guides/many-tables.md). `defaults` has the keys of `Entry`; "
        "entries of `tables` and `folders` may have them, too."
    )
    return "\n\n".join([head, *map(table, models)])


def table(model: type[BaseModel]) -> str:
    """The fields of a model: key, form, default and meaning. Those of a base that has a table itself are left out."""
    schema = model.model_json_schema()
    own = {name: spec for name, spec in schema["properties"].items() if name in model.__annotations__}
    texts = attribute_docs(model)
    rows = []
    for name, spec in own.items():
        default = spec.get("default")
        # Keys of a model of its own have their defaults in its table.
        shown = "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"
        shown = "required" if name in schema.get("required", ()) else shown
        meaning = " ".join((spec.get("description") or texts.get(name) or "").split()).replace("|", "\\|")
        rows.append(f"| `{name}` | {form(spec)} | {shown} | {meaning.replace('``', '`')} |")
    text = inspect.cleandoc(model.__doc__ or "").replace("``", "`")
    return "\n".join([f"## {model.__name__}\n\n{text}\n\n| key | form | default | |\n|---|---|---|---|", *rows])


def form(spec: dict[str, Any]) -> str:
    """A JSON schema in a word or two."""
    if "$ref" in spec:
        name = spec["$ref"].rpartition("/")[2]
        return f"`{name}`"
    if "enum" in spec:
        return ", ".join(f"`{value}`" for value in spec["enum"])
    if "const" in spec:
        return f"`{spec['const']}`"
    for many in ("anyOf", "oneOf", "allOf"):
        if many in spec:
            return " or ".join(dict.fromkeys(filter(None, (form(each) for each in spec[many]))))
    kind = spec.get("type", "")
    if kind == "array":
        return f"list of {form(spec.get('items', {}))}".removesuffix(" of ")
    names = {"object": "keys", "string": "text", "boolean": "`true`, `false`", "null": "", "integer": "whole number"}
    return str(names.get(kind, kind))


def attribute_docs(model: type[BaseModel]) -> dict[str, str]:
    """The strings below the fields of a model, of its bases, too."""
    return {
        name: text
        for each in reversed(model.__mro__)
        if each.__module__.startswith("dv_m")
        for name, text in strings(each)
    }


def strings(cls: type) -> Iterator[tuple[str, str]]:
    (body,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, text in pairwise(statements):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            yield field.target.id, str(text.value.value)


# -- Python ------------------------------------------------------------------------------------------------------------


def python(api: str) -> str:
    """The docstrings of every public name, as docs/reference/api.md lists them."""
    parts = ["# Every public name\n\nMade from the docstrings of the names in [public API](api.md)."]
    for module, names in re.findall(r"^\| `(dv_maintenance[\w.]*)` \| (.+) \|$", api, re.MULTILINE):
        parts.append(f"## {module}")
        parts += [f"::: {module}.{name}" for name in re.findall(r"`(\w+)`", names)]
    return "\n\n".join(parts)
