"""The parameters cell of a notebook: read from its source, and checked before anything runs.

papermill only warns about unknown names and checks no types, so `-p batch_size eight` would run on. A line is

    name: type = default  # help (unit; low..high)        or        # help (unit; this|that)

with types `str int float bool list dict tuple[...] Optional[...]`, the ones that `papermill --help-notebook` shows.
"""

from __future__ import annotations

import ast
import contextlib
import io
import math
import os
import re
import shutil
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocrlab.config.aliases import gather, nearest
from ocrlab.errors import ConfigError
from ocrlab.redaction import is_secret

KINDS: dict[str, type] = {kind.__name__: kind for kind in (str, int, float, bool, list, dict, tuple)}
WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "list": "a list",
    "dict": "a mapping",
    "tuple": "several values",
}
INJECTED = "# Parameters"  # how papermill begins the cell that it puts below the parameters cell
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
RANGE = re.compile(rf"({NUMBER})?\.\.({NUMBER})?")
CHOICES = re.compile(r"[\w.+-]+(?:\|[\w.+-]+)+")
PATHS = re.compile(r"\(paths?\)$")  # at the end of a help: they must be there
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
        words = _words(ast.parse(self.kind, mode="eval").body)
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.low is None and self.high is None:
            return words
        low = "" if self.low is None else f" at least {self.low:g}"
        high = "" if self.high is None else f" at most {self.high:g}"
        return f"{words}{low}{' and' if low and high else ''}{high}"


def read(source: str) -> list[Parameter]:
    """Return the parameters of a cell's source; raises ConfigError for a line that papermill would miss."""
    comments = dict(_comments(source))
    parameters = []
    for line in ast.parse(source).body:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            continue  # a docstring
        name = (
            ast.unparse(line.target) if isinstance(line, ast.AnnAssign) else ast.unparse(line).partition("=")[0].strip()
        )
        if not isinstance(line, ast.AnnAssign) or line.value is None:
            raise ConfigError(f"Parameter {name} has no type", need=f"{name}: type = default", do="Write its type")
        try:
            _words(line.annotation)
            default = ast.literal_eval(line.value)
        except (KeyError, ValueError):
            got, need = ast.unparse(line), f"a plain value, and one of {', '.join(KINDS)}, tuple[...], Optional[...]"
            raise ConfigError(f"Parameter {name} cannot be read", got=got, need=need) from None
        help_text = comments.get(line.end_lineno or line.lineno, "")
        parameters.append(Parameter(name, ast.unparse(line.annotation), default, help_text, **_limits(help_text)))
    return parameters


def read_foreign(source: str) -> list[Parameter]:
    """Return the parameters of somebody else's cell, each with the type of its annotation, else of its default.

    A kind of "" takes anything: None, and what only running the cell would tell. Raises ConfigError if it is no Python.
    """
    try:
        return read(source)
    except (ConfigError, SyntaxError):
        plain = "\n".join("" if line.startswith(("%", "!")) else line for line in source.splitlines())
    try:
        lines = ast.parse(plain).body
    except SyntaxError as error:
        raise ConfigError("The parameters cell cannot be read", got=str(error), need="Python: name = value") from None
    parameters: dict[str, Parameter] = {}
    for line in lines:
        targets = line.targets if isinstance(line, ast.Assign) else []
        for target in [line.target] if isinstance(line, ast.AnnAssign) else targets:
            if isinstance(target, ast.Name):
                parameters[target.id] = Parameter(target.id, *_kind_and_default(line))
            elif isinstance(target, ast.Tuple | ast.List):
                parameters |= {
                    element.id: Parameter(element.id, "", None)
                    for element in target.elts
                    if isinstance(element, ast.Name)
                }
    return list(parameters.values())


def _kind_and_default(line: Any) -> tuple[str, Any]:
    """Return kind and default of one assignment of somebody else's."""
    try:
        default = ast.literal_eval(line.value)
    except (ValueError, TypeError):
        default = None
    if isinstance(line, ast.AnnAssign):
        kind = re.sub(r"^(.+?) \| None$|^None \| (.+)$", r"Optional[\1\2]", ast.unparse(line.annotation))
        with contextlib.suppress(KeyError, SyntaxError):
            _words(ast.parse(kind, mode="eval").body)
            return kind, default
    name = type(default).__name__
    return (name if name in KINDS else ""), default


def check_values(declared: Sequence[Parameter], values: Mapping[str, Any]) -> None:
    """Raise one ConfigError with all that is wrong in the values that somebody else's notebook is given."""
    by_name = {parameter.name: parameter for parameter in declared}
    problems = [secret_error(name) for name in values if name in by_name and is_secret(name)]
    problems += [_unknown(name, list(by_name)) for name in values if name not in by_name]
    fits = [(by_name[name], value) for name, value in values.items() if name in by_name and by_name[name].kind]
    problems += [problem for parameter, value in fits if (problem := find_problem(parameter, value)) is not None]
    if problems:
        raise gather(problems)


def check_paths(declared: Sequence[Parameter], values: Mapping[str, Any]) -> None:
    """Raise one ConfigError for the given paths that lead nowhere: those of parameters whose help ends with (path).

    A word that the help explains (`newest: ...`) is none, and a program may be found by its name.
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
    if problems:
        raise gather(problems)


def check(cells: Sequence[str], namespace: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of the parameters, by name; raises one ConfigError that says everything that is wrong.

    `cells` are the sources that ran so far, in order, as IPython keeps them in `In`; `namespace` is `globals()`. Names
    in `also` may be injected without standing in the parameters cell; their values are not checked here.
    """
    at, declared = _find(cells, namespace)
    names = [parameter.name for parameter in declared]
    injected = [name for cell in cells[at + 1 :] if cell.lstrip().startswith(INJECTED) for name in _assigned(cell)]
    problems = [secret_error(name) for name in names if is_secret(name)]
    problems += [_unknown(name, names, also) for name in injected if name not in names and name not in also]
    values = {name: namespace[name] for name in injected if name in also and name in namespace}
    for parameter in declared:
        value = namespace.get(parameter.name, parameter.default)
        problem = find_problem(parameter, value)
        if problem is None:
            values[parameter.name] = tuple(value) if parameter.kind.startswith("tuple") else value
        elif not is_secret(parameter.name):
            problems.append(problem)
    if problems:
        raise gather(problems)
    return values


def changed(cells: Sequence[str], namespace: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `values` that differ from the defaults in the parameters cell, where papermill changed them."""
    defaults = {parameter.name: parameter.default for parameter in _find(cells, namespace)[1]}
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def find_problem(parameter: Parameter, value: Any) -> ConfigError | None:
    """Return what is wrong with a value, or None."""
    kind = ast.parse(parameter.kind, mode="eval").body
    fits = _fits(value, kind)
    if fits and value is not None:
        fits = not parameter.choices or str(value) in parameter.choices
        if isinstance(value, int | float):
            fits = fits and (parameter.low is None or value >= parameter.low)
            fits = fits and (parameter.high is None or value <= parameter.high)
    if fits:
        return None
    shown = repr(value) if len(repr(value)) <= LONGEST else f"{repr(value)[:LONGEST]}…"
    do = None
    if isinstance(value, str) and _outer(kind) in ("list", "dict", "tuple"):
        do = f"With papermill write it as YAML: -y '{parameter.name}: [...]'"
    return ConfigError(f"Parameter {parameter.name}={shown} cannot be used", need=parameter.need(), do=do)


def _find(cells: Sequence[str], namespace: Mapping[str, Any]) -> tuple[int, list[Parameter]]:
    """Return the position and the parameters of the parameters cell that ran last; raises ConfigError.

    nbval runs cells without history: then the annotations that Python itself keeps must do, without help and limits.
    """
    for at in range(len(cells) - 1, -1, -1):
        try:
            lines = ast.parse(cells[at]).body
        except SyntaxError:
            continue  # magics
        typed = [line for line in lines if isinstance(line, ast.AnnAssign)]
        if typed and all(isinstance(line, ast.AnnAssign | ast.Assign | ast.Expr) for line in lines):
            return at, read(cells[at])
    annotations = namespace.get("__annotations__", {})
    if annotations:
        return len(cells), [Parameter(name, _source(kind), namespace.get(name)) for name, kind in annotations.items()]
    raise ConfigError("The parameters cell has not run", need="a cell of lines name: type = default", do="Run All")


def _source(annotation: Any) -> str:
    return annotation.__name__ if type(annotation) is type else str(annotation).replace("typing.", "")


def _assigned(cell: str) -> list[str]:
    return [ast.unparse(line.targets[0]) for line in ast.parse(cell).body if isinstance(line, ast.Assign)]


def secret_error(name: str) -> ConfigError:
    do = "Set it in the environment instead; if its value was real, delete this notebook's file and change the secret"
    return ConfigError(f"Parameter {name} is named like a secret, and a notebook keeps its parameters", do=do)


def _unknown(name: str, names: Sequence[str], also: Collection[str] = ()) -> ConfigError:
    if is_secret(name):
        return secret_error(name)
    near = nearest(name, [*names, *also])
    do = f"Did you mean {near}? " if near else ""
    return ConfigError(f"This notebook has no parameter {name}", do=f"{do}It has {', '.join(names) or 'none'}")


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ").rstrip()


def _limits(help_text: str) -> dict[str, Any]:
    """Read `(unit; low..high)` or `(unit; this|that)` from the end of a comment."""
    bracket = re.search(r"\(([^()]*)\)$", help_text)
    for part in (bracket[1] if bracket else "").split(";"):
        if match := RANGE.fullmatch(part.strip()):
            low, high = (None if side is None else float(side) for side in match.groups())
            return {"low": low, "high": high}
        if CHOICES.fullmatch(part.strip()):
            return {"choices": tuple(part.strip().split("|"))}
    return {}


def _outer(kind: ast.expr) -> str:
    return ast.unparse(kind.value if isinstance(kind, ast.Subscript) else kind)


def _inner(kind: ast.expr) -> list[ast.expr]:
    inside = kind.slice if isinstance(kind, ast.Subscript) else None
    return list(inside.elts) if isinstance(inside, ast.Tuple) else [inside] if inside is not None else []


def _words(kind: ast.expr) -> str:
    """Return what an annotation takes in words; raises KeyError for one that is not allowed."""
    outer, inner = _outer(kind), _inner(kind)
    if outer == "Optional" and inner:
        return f"{_words(inner[0])} or None"
    inside = [_words(part) for part in inner if ast.unparse(part) != "..."]
    if outer == "tuple" and inside:
        return f"values ({', '.join(inside)})"
    return f"{WORDS[outer]} of {' and '.join(inside)}" if inside else WORDS[outer]


def _fits(value: Any, kind: ast.expr) -> bool:
    outer, inner = _outer(kind), _inner(kind)
    if outer == "Optional":
        return value is None or _fits(value, inner[0])
    if outer == "float":
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if outer == "tuple":
        if not isinstance(value, list | tuple):  # YAML and JSON know only lists
            return False
        each = inner[:1] * len(value) if inner and ast.unparse(inner[-1]) == "..." else inner
        return not inner or (len(each) == len(value) and all(map(_fits, value, each)))
    if isinstance(value, list) and outer == "list" and inner:
        return all(_fits(item, inner[0]) for item in value)
    if isinstance(value, dict) and outer == "dict" and inner:
        return all(_fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items())
    return isinstance(value, KINDS[outer]) and not (outer == "int" and isinstance(value, bool))
