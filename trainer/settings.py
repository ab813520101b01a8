"""How a setting is declared, checked, converted from text, and read from a file."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from lldscope.core.errors import UsageError

from .synonyms import meant

Limit = tuple[str, Callable[[Any], bool]]


def setting(
    default: Any, meaning: str, limit: str = "", ok: Callable[[Any], bool] | None = None
) -> Any:
    """A field with its meaning, and the limit its value must keep to, in words and as a test."""
    return dataclasses.field(
        default=default, metadata={"meaning": meaning, "limit": limit, "ok": ok}
    )


def at_least(low: float) -> Limit:
    return f"a number >= {low}", lambda v: low <= v < math.inf


def above(low: float) -> Limit:
    return f"a number > {low}", lambda v: low < v < math.inf


def share(open_low: bool = False) -> Limit:
    if open_low:
        return "a number above 0 and at most 1", lambda v: 0 < v <= 1
    return "a number from 0 to 1", lambda v: 0 <= v <= 1


def one_of(*values: object) -> Limit:
    return f"one of {', '.join(map(str, values))}", lambda v: v in values


def some_of(*names: str) -> Limit:
    return (
        f"off, or one or more of {', '.join(names)} with commas between",
        lambda v: v == "off" or set(v.split(",")) <= set(names),
    )


def read_settings(
    source: str | Path, overrides: Sequence[str], known: Collection[str]
) -> dict[str, Any]:
    """The `key: value` lines of a YAML file, or of a shipped configuration by its name, with
    `key=value` overrides put over them; values as they stand, `name` from the file's name. A line
    `base` names a shipped configuration whose lines hold where the file has none of its own.

    Raises UsageError for a missing file, lines that cannot be read and keys not in `known`.
    """
    return apply_overrides(_lines(source), overrides, known)


def _lines(source: str | Path) -> dict[str, Any]:
    path = _find(source)
    try:
        read = yaml.safe_load(path.read_text("utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not readable as YAML: {error}") from error
    if not isinstance(read, Mapping):
        raise UsageError(f"{path} must hold key: value lines")
    own = {"name": path.stem} | dict(read)
    base = own.pop("base", None)
    if base is None:
        return own
    if base not in shipped() or base == path.stem:
        raise UsageError(f"{path}: base={base!r} is no shipped configuration")
    return _lines(str(base)) | own


def apply_overrides(
    values: Mapping[str, Any], overrides: Sequence[str], known: Collection[str]
) -> dict[str, Any]:
    """`values` with `key=value` texts put over them. Raises UsageError for a key not in `known`."""
    found = dict(values)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(f"{override!r} is not understood: write settings as key=value")
        found[key] = value
    for key in found:
        if key not in known:
            near = meant(str(key), known)
            hint = f"; did you mean {near}?" if near else f"; known are {', '.join(known)}"
            raise UsageError(f"There is no setting {key!r}{hint}")
    return found


def shipped() -> list[str]:
    """Names of the configurations that come with the trainer."""
    return sorted(
        f.name.removesuffix(".yaml")
        for f in (files("lldscope_trainer") / "configs").iterdir()
        if f.name.endswith(".yaml")
    )


def _find(source: str | Path) -> Path:
    if Path(source).is_file():
        return Path(source)
    if str(source) in shipped():
        return Path(str(files("lldscope_trainer") / "configs" / f"{source}.yaml"))
    raise UsageError(
        f"There is no configuration {str(source)!r}: give the path of a YAML file or one of "
        f"{', '.join(shipped())}"
    )


def describe(cls: Any) -> str:
    """Every setting of the dataclass with default, limit and meaning, as a Markdown table."""
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    kinds = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        allowed = f.metadata["limit"] or ("true or false" if kinds[f.name] is bool else "text")
        words = {"True": "true", "False": "false", "None": "none", "": "empty"}
        default = words.get(str(f.default), str(f.default))
        lines.append(f"| `{f.name}` | {default} | {allowed} | {f.metadata['meaning']} |")
    return "\n".join(lines)


def convert(key: str, value: Any, kind: Any) -> Any:
    """`value`, which may be the text of a key=value override, as `kind`."""
    optional = isinstance(kind, types.UnionType)
    if optional and (value is None or value in ("none", "null")):
        return None
    base = typing.get_args(kind)[0] if optional else kind
    try:
        if base is bool:
            # YAML 1.1 reads a bare `off` as false, and so do we.
            return {"true": True, "on": True, "false": False, "off": False}[str(value).lower()]
        if base is int and int(value) != float(value):
            raise ValueError
        if base is str:
            return "off" if value is False else str(value)
        if isinstance(value, bool):
            raise ValueError
        return base(value)
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{key}={value!r} is not allowed: it must be {_WORDS[base]}") from None


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
