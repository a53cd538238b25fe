"""The fields of a pydantic model as flat dotted settings, and in words: what each takes, and what was wrong."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ocrlab.config.aliases import find, gather
from ocrlab.config.overrides import Setting
from ocrlab.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Key:
    """What is known about one setting: its annotation, its default, what it takes in words, and one line of help."""

    type: Any
    default: Any
    need: str
    help: str


def table(schema: type[BaseModel]) -> dict[str, Key]:
    """Return every dotted key of `schema`, in the order of its source."""
    fields: dict[str, Key] = {}
    for name, about in schema.model_fields.items():
        if isinstance(about.annotation, type) and issubclass(about.annotation, BaseModel):
            fields |= {f"{name}.{leaf}": key for leaf, key in table(about.annotation).items()}
        else:
            need = describe(about.annotation, about.metadata)
            fields[name] = Key(about.annotation, about.default, need, about.description or "")
    return fields


def flat(model: BaseModel) -> dict[str, Any]:
    """Return every value of `model` under its dotted key."""
    values: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            values |= {f"{name}.{leaf}": item for leaf, item in flat(value).items()}
        else:
            values[name] = value
    return values


def assign(model: Model, settings: Mapping[str, Setting]) -> Model:
    """Set each setting on `model` and return it; raises ConfigError with all values that cannot be used."""
    fields = table(type(model))
    problems: list[ConfigError] = []
    for key, setting in settings.items():
        group, _, leaf = key.rpartition(".")
        try:
            setattr(getattr(model, group) if group else model, leaf, _fitted(setting, fields[key].type))
        except ValueError:
            renamed = "" if key == setting.key else f", here {key}"
            what = f"{setting.key}={setting.shown} cannot be used ({setting.where}{renamed})"
            problems.append(ConfigError(what, need=fields[key].need))
    if problems:
        raise gather(problems)
    return model


def _fitted(setting: Setting, annotation: Any) -> Any:
    """Return the value in the shape that a field of `annotation` reads; pydantic turns texts into numbers."""
    if setting.empty and accepts(annotation, NoneType):
        return None
    if isinstance(setting.value, str) and "," in setting.value and accepts(annotation, tuple):
        return setting.value.split(",")
    return setting.value


def explain(error: ValidationError, schema: type[BaseModel]) -> ConfigError:
    """Return a pydantic error of `schema` as ConfigError: key, what was given, what is needed, the nearest name."""
    fields = table(schema)
    problems = []
    for each in error.errors(include_url=False):
        place = [str(part) for part in each["loc"]]
        keys = [".".join(place[:end]) for end in range(len(place), 0, -1)]
        key = next((key for key in keys if key in fields), keys[0])
        try:
            ours = find(key, fields, schema.__name__)
            what = f"{key} has a wrong value" if ours == key else f"{key} is named {ours} here"
            problems.append(ConfigError(what, got=repr(each["input"]), need=fields[ours].need))
        except ConfigError as unknown:
            problems.append(unknown)
    return gather(problems)


def accepts(annotation: Any, kind: type) -> bool:
    """Return True if a field of `annotation` takes a value of exactly `kind` (NoneType for optional ones)."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return accepts(get_args(annotation)[0], kind)
    if origin in (Union, UnionType):
        return any(accepts(part, kind) for part in get_args(annotation))
    return annotation is kind or origin is kind


def describe(annotation: Any, bounds: Sequence[Any] = ()) -> str:
    """Return what a field takes in words, such as `a whole number from 16 to 1024, a multiple of 4`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [extra.metadata if isinstance(extra, FieldInfo) else [extra] for extra in parts[1:]]
        return describe(parts[0], [*bounds, *itertools.chain(*inner)])
    if origin in (Union, UnionType):
        return " or ".join(describe(part, bounds) for part in parts)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}" if len(parts) > 1 else str(parts[0])
    if origin is tuple:
        return f"two numbers low, high with low <= high, each {describe(parts[0]).removeprefix('a number ')}"
    endings = [limit.pattern for limit in bounds if getattr(limit, "pattern", None)]
    if annotation is str and endings:
        return f"a name that ends in {endings[0].removesuffix('$').replace(chr(92), '')}"
    if annotation is str:
        return "text that is not empty" if any(getattr(limit, "min_length", 0) for limit in bounds) else "text"
    words = {NoneType: "none", bool: "true or false", int: "a whole number", float: "a number"}
    limits = _limits(bounds) if annotation in (int, float) else ""
    return f"{words.get(annotation, annotation)} {limits}".strip()


def _limits(bounds: Sequence[Any]) -> str:
    limits = {
        name: value
        for name in ("ge", "gt", "le", "lt", "multiple_of")
        for limit in bounds
        if (value := getattr(limit, name, None)) is not None
    }
    if {"ge", "le"} <= limits.keys():
        words = [f"from {limits['ge']} to {limits['le']}"]
    else:
        signs = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        words = [" and ".join(f"{sign} {limits[name]}" for name, sign in signs.items() if name in limits)]
    if "multiple_of" in limits:
        words.append(f"a multiple of {limits['multiple_of']}")
    return ", ".join(filter(None, words))
