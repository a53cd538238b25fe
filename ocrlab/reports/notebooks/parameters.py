"""The parameters cell of a notebook: read from its source, and checked before anything runs.

papermill only warns about unknown names and checks no types, so `-p batch_size eight` would run on. A line is

    name: type = default  # help (unit; low..high)        or        # help (unit; this|that)

with types `str int float bool list dict tuple[...] Optional[...]`, the ones that `papermill --help-notebook` shows.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shutil
import tokenize
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Optional

from pydantic import FiniteFloat, TypeAdapter

from ocrlab.config.aliases import gather, nearest
from ocrlab.errors import ConfigError
from ocrlab.redaction import is_secret

KINDS: dict[str, type] = {kind.__name__: kind for kind in (str, int, float, bool, list, dict, tuple)}
TYPES: dict[str, Any] = KINDS | {"float": FiniteFloat, "Optional": Optional}
WORDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "True or False"}
INJECTED = "# Parameters"  # how papermill begins the cell that it puts below the parameters cell
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
RANGE = re.compile(rf"({NUMBER})?\.\.({NUMBER})?")
CHOICES = re.compile(r"[\w.+-]+(?:\|[\w.+-]+)+")
PATHS = re.compile(r"\(paths?\)$")  # at the end of a help: they must exist
LONGEST = 60  # characters of a value in a message


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell; `kind` is the annotation's source, the limits come from the comment."""

    name: str
    kind: str
    default: Any
    help: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def need(self) -> str:
        """Return what the parameter takes, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        limits = [f"at least {self.low:g}"] if self.low is not None else []
        limits += [f"at most {self.high:g}"] if self.high is not None else []
        return f"{WORDS.get(self.kind, self.kind)} {' and '.join(limits)}".rstrip()


def read(source: str) -> list[Parameter]:
    """Return the parameters of a cell's source; raises ConfigError for a line that papermill would miss."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    parameters = []
    for line in ast.parse(source).body:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            continue  # a docstring
        if not isinstance(line, ast.AnnAssign) or line.value is None:
            target = line.target if isinstance(line, ast.AnnAssign) else line
            name = ast.unparse(target).partition("=")[0].strip()
            raise ConfigError(f"Parameter {name} has no type", need=f"{name}: type = default", do="Write its type")
        name, kind = ast.unparse(line.target), ast.unparse(line.annotation)
        try:
            _adapter(kind)
            default = ast.literal_eval(line.value)
        except ValueError:
            got, need = ast.unparse(line), f"a plain value, and one of {', '.join(KINDS)}, tuple[...], Optional[...]"
            raise ConfigError(f"Parameter {name} cannot be read", got=got, need=need) from None
        help_text = comments.get(line.end_lineno or line.lineno, "").lstrip("# ").rstrip()
        parameters.append(Parameter(name, kind, default, help_text, **_limits(help_text)))
    return parameters


def _limits(help_text: str) -> dict[str, Any]:
    """Read `(unit; low..high)` or `(unit; this|that)` from the end of a comment."""
    bracket = re.search(r"\(([^()]*)\)$", help_text)
    for part in map(str.strip, (bracket[1] if bracket else "").split(";")):
        if match := RANGE.fullmatch(part):
            low, high = (None if side is None else float(side) for side in match.groups())
            return {"low": low, "high": high}
        if CHOICES.fullmatch(part):
            return {"choices": tuple(part.split("|"))}
    return {}


def read_foreign(source: str) -> list[Parameter]:
    """Return the parameters of a third-party cell, each with the type of its annotation, else of its default.

    A kind of "" takes anything: None, and what only running the cell would show. Raises ConfigError if it is not
    Python.
    """
    with contextlib.suppress(ConfigError, SyntaxError):
        return read(source)
    try:
        lines = ast.parse("\n".join("" if line.startswith(("%", "!")) else line for line in source.splitlines())).body
    except SyntaxError as error:
        raise ConfigError("The parameters cell cannot be read", got=str(error), need="Python: name = value") from None
    parameters: dict[str, Parameter] = {}
    for line in lines:
        if not isinstance(line, ast.Assign | ast.AnnAssign):
            continue
        for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
            if isinstance(target, ast.Name):
                parameters[target.id] = Parameter(target.id, *_kind_and_default(line))
            elif isinstance(target, ast.Tuple | ast.List):
                names = [element.id for element in target.elts if isinstance(element, ast.Name)]
                parameters |= {name: Parameter(name, "", None) for name in names}
    return list(parameters.values())


def _kind_and_default(line: ast.Assign | ast.AnnAssign) -> tuple[str, Any]:
    """Infer type and default of a parameter assignment in a third-party notebook."""
    try:
        default = ast.literal_eval(line.value) if line.value else None
    except (ValueError, TypeError):
        default = None
    if isinstance(line, ast.AnnAssign):
        kind = re.sub(r"^(.+?) \| None$|^None \| (.+)$", r"Optional[\1\2]", ast.unparse(line.annotation))
        with contextlib.suppress(ValueError):
            _adapter(kind)
            return kind, default
    name = type(default).__name__
    return (name if name in KINDS else ""), default


def check_values(declared: Sequence[Parameter], values: Mapping[str, Any], also: Collection[str] = ()) -> None:
    """Raise one ConfigError with everything that is wrong in the values for a notebook; names in `also` are known."""
    by_name = {parameter.name: parameter for parameter in declared}
    plain = {name: value for name, value in values.items() if not is_secret(name)}
    _raise(
        *(secret_error(name) for name in values if is_secret(name)),
        *(_unknown(name, list(by_name), also) for name in plain if name not in by_name and name not in also),
        *(find_problem(by_name[name], value) for name, value in plain.items() if name in by_name),
    )


def check_paths(declared: Sequence[Parameter], values: Mapping[str, Any]) -> None:
    """Raise one ConfigError for the given paths that do not exist: those of parameters whose help ends with (path).

    A word that the help explains (`newest: ...`) is not a path, and a program may be found by its name.
    """
    problems = []
    for parameter in declared:
        value = values.get(parameter.name)
        for text in (value if isinstance(value, list) else [value]) if PATHS.search(parameter.help) else ():
            if not text or not isinstance(text, str) or f"{text}:" in parameter.help:
                continue
            if not os.path.exists(os.path.expanduser(text)) and not shutil.which(text):
                what = f"Parameter {parameter.name}={text!r} names nothing that is there"
                problems.append(ConfigError(what, need=parameter.help, do=f"Looked for it in {os.getcwd()}"))
    _raise(*problems)


def check(cells: Sequence[str], namespace: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of the parameters, by name; raises one ConfigError that names everything that is wrong.

    `cells` are the sources that ran so far, in order, as IPython keeps them in `In`; `namespace` is `globals()`. Names
    in `also` may be injected without standing in the parameters cell; their values are not checked here.
    """
    at, declared = _find(cells, namespace)
    trees = (ast.parse(cell).body for cell in cells[at + 1 :] if cell.lstrip().startswith(INJECTED))
    injected = [ast.unparse(line.targets[0]) for lines in trees for line in lines if isinstance(line, ast.Assign)]
    values = {parameter.name: namespace.get(parameter.name, parameter.default) for parameter in declared}
    values = {name: namespace.get(name) for name in injected if name not in values} | values
    check_values(declared, values, also)
    tuples = {parameter.name for parameter in declared if parameter.kind.startswith("tuple")}
    return {name: tuple(value) if name in tuples else value for name, value in values.items()}


def changed(cells: Sequence[str], namespace: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `values` that differ from the defaults in the parameters cell, where papermill changed them."""
    defaults = {parameter.name: parameter.default for parameter in _find(cells, namespace)[1]}
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def find_problem(parameter: Parameter, value: Any) -> ConfigError | None:
    """Return what is wrong with a value, or None."""
    fits = not parameter.kind or _fits(value, parameter.kind)
    if fits and value is not None:
        fits = not parameter.choices or str(value) in parameter.choices
        if isinstance(value, int | float):
            low, high = parameter.low, parameter.high
            fits = fits and (low is None or value >= low) and (high is None or value <= high)
    if fits:
        return None
    text = repr(value) if len(repr(value)) <= LONGEST else f"{repr(value)[:LONGEST]}…"
    do = None
    if isinstance(value, str) and parameter.kind.partition("[")[0] in ("list", "dict", "tuple"):
        do = f"With papermill write it as YAML: -y '{parameter.name}: [...]'"
    return ConfigError(f"Parameter {parameter.name}={text} cannot be used", need=parameter.need(), do=do)


def _raise(*problems: ConfigError | None) -> None:
    errors = [problem for problem in problems if problem is not None]
    if errors:
        raise gather(errors)


def _find(cells: Sequence[str], namespace: Mapping[str, Any]) -> tuple[int, list[Parameter]]:
    """Return the position and the parameters of the parameters cell that ran last; raises ConfigError.

    nbval runs cells without history: then the annotations that Python itself keeps must do, without help and limits.
    """
    for at in range(len(cells) - 1, -1, -1):
        with contextlib.suppress(SyntaxError):  # magics
            lines = ast.parse(cells[at]).body
            only_assigns = all(isinstance(line, ast.AnnAssign | ast.Assign | ast.Expr) for line in lines)
            if only_assigns and any(isinstance(line, ast.AnnAssign) for line in lines):
                return at, read(cells[at])
    annotations = namespace.get("__annotations__", {})
    if not annotations:
        raise ConfigError("The parameters cell has not run", need="a cell of lines name: type = default", do="Run All")
    kinds = {
        name: kind.__name__ if type(kind) is type else str(kind).replace("typing.", "")
        for name, kind in annotations.items()
    }
    return len(cells), [Parameter(name, kind, namespace.get(name)) for name, kind in kinds.items()]


def secret_error(name: str) -> ConfigError:
    """Return the error for a parameter that has a name like a secret."""
    do = "Set it in the environment instead; if its value was real, delete this notebook's file and change the secret"
    return ConfigError(f"Parameter {name} looks like a secret, and notebook parameters are saved in the file", do=do)


def _unknown(name: str, names: Sequence[str], also: Collection[str]) -> ConfigError:
    near = nearest(name, [*names, *also])
    do = f"Did you mean {near}? " if near else ""
    return ConfigError(f"Unknown parameter: {name}", do=f"{do}It has {', '.join(names) or 'none'}")


@lru_cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    """Return what checks the values of an annotation; raises ValueError for one that is not allowed."""
    try:
        tree = ast.parse(kind, mode="eval")
        plain = (ast.Expression, ast.Subscript, ast.Name, ast.Tuple, ast.Load)
        if not all(isinstance(node, plain) or getattr(node, "value", "") in (None, ...) for node in ast.walk(tree)):
            raise ValueError(f"{kind} is not a type of a parameter")
        return TypeAdapter(eval(compile(tree, "<annotation>", "eval"), {"__builtins__": {}}, TYPES))
    except Exception as error:  # of Python or pydantic, for `list[int, int, int]` and the like
        raise ValueError(f"{kind} is not a type of a parameter") from error


def _fits(value: Any, kind: str) -> bool:
    """Return whether a value has a type, as JSON and YAML hold it: they know lists, and no tuples."""
    try:
        _adapter(kind).validate_json(json.dumps(value), strict=True)
    except (TypeError, ValueError):
        return False
    return True
