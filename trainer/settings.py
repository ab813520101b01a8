"""Settings: validation, description, and reading from a file with overrides."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from lldscope.core.errors import UsageError
from lldscope.core.trainers import ours


class Settings(BaseModel):
    """Frozen values, each with a default and a docstring; text is converted to the field's type.
    Raises UsageError for an invalid value, with the valid ones."""

    model_config = ConfigDict(
        frozen=True, use_attribute_docstrings=True, coerce_numbers_to_str=True,
        allow_inf_nan=False, extra="forbid",
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            raise UsageError(
                f"{name}={first['input']} is not allowed: it must be "
                f"{choices(type(self).model_fields[name])}"
            ) from None

    @field_validator("*", mode="before")
    @classmethod
    def _from_yaml(cls, value: Any, info: ValidationInfo) -> Any:
        """Undo YAML 1.1's reading of a bare `off` as false; `none` stands for an empty value."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind is not bool:
            return "on" if value else "off"
        return None if value in ("none", "null") and type(None) in get_args(kind) else value

    @classmethod
    def names(cls) -> list[str]:
        return list(cls.model_fields)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return self.model_dump()

    def replace(self, **values: Any) -> Self:
        """A copy with other values, validated."""
        return type(self)(**self.to_dict() | values)


def read_lines(source: str | Path) -> dict[str, Any]:
    """The `key: value` lines of a YAML file, or of a built-in configuration by name; the file's
    name is the default of `name`. A line `base` names a built-in configuration that supplies
    missing lines. Raises UsageError if it cannot be read."""
    path = _find(source)
    try:
        read = yaml.safe_load(path.read_text("utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not readable as YAML: {error}") from error
    if not isinstance(read, Mapping):
        raise UsageError(f"{path} must hold key: value lines")
    lines = {"name": path.stem} | dict(read)
    base = lines.pop("base", None)
    if base is None:
        return lines
    if base not in shipped() or base == path.stem:
        raise UsageError(f"{path}: base={base!r} is not a built-in configuration")
    return read_lines(str(base)) | lines


def apply_overrides(
    values: Mapping[str, Any], overrides: Sequence[str], names: Collection[str]
) -> dict[str, Any]:
    """`values` updated by `key=value` texts. Raises UsageError for a key not in `names`."""
    result = dict(values)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(f"{override!r} is not understood: write settings as key=value")
        result[key] = value
    for key in result:
        if key not in names:
            near = suggest(str(key), names)
            hint = f"; did you mean {near}?" if near else f"; known are {', '.join(names)}"
            raise UsageError(f"There is no setting {key!r}{hint}")
    return result


def suggest(key: str, names: Collection[str]) -> str | None:
    """The setting among `names` that the writer of `key` may have meant, possibly another trainer's
    name."""
    last = key.rpartition(".")[2].lower().strip("-+").replace("-", "_")
    if last in names:
        return last
    if (setting := ours(names).get(last)) in names:
        return setting
    return next(iter(difflib.get_close_matches(key, names, n=1)), None)


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


def describe(cls: type[Settings]) -> str:
    """Every setting with default, limit and meaning, as a Markdown table."""
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    words = {"True": "true", "False": "false", "None": "none", "": "empty"}
    for name, field in cls.model_fields.items():
        default = words.get(str(field.default), str(field.default))
        meaning = " ".join((field.description or "").split())
        lines.append(f"| `{name}` | {default} | {choices(field)} | {meaning} |")
    return "\n".join(lines)


def choices(field: FieldInfo) -> str:
    """The valid values of a setting, in words."""
    if field.title:
        return field.title
    if get_origin(field.annotation) is Literal:
        return f"one of {', '.join(map(str, get_args(field.annotation)))}"
    kind: Any = next(k for k in (*get_args(field.annotation), field.annotation) if k)
    limit = {k: getattr(m, k) for m in field.metadata for k in ("ge", "gt", "le") if hasattr(m, k)}
    words = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
    match limit:
        case {"ge": low, "le": high}:
            return f"{words} from {low} to {high}"
        case {"gt": low, "le": high}:
            return f"{words} above {low} and at most {high}"
        case {"ge": low}:
            return f"{words} >= {low}"
        case {"gt": low}:
            return f"{words} > {low}"
    return words
