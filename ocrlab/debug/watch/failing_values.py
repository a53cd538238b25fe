"""The values that a failing line used, read once from the frames of the exception that ends a program.

`ocrlab watch` copies this file beside injected_error_hook.py, which runs it only when there is an exception.
It runs inside the user's process: standard library only, no user code is called (no repr, no property, no `len` of a
user's class), tensors on a GPU are described without a CUDA call, and all of it ends after SECONDS.
"""

from __future__ import annotations

import difflib
import itertools
import linecache
import re
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from types import FunctionType, MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any

SECONDS = 0.05
MAX_FRAMES, MAX_NAMES, MAX_ITEMS, MAX_TEXT, MAX_RECORD = 30, 24, 64, 120, 1 << 16
COUNTED = 1_000_000  # elements of a tensor whose smallest and largest value are read
NAMES = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
PLAIN = (int, float, bool, complex, type(None))
MAX_MODULES = 10_000
LIBRARY_ARGUMENTS, LIBRARY_NAMES = 8, ("self", "dataset", "sampler")  # that are described of a library's frame
MAX_CODE = 1 << 16  # bytes of a function's code up to the failing instruction, whose columns are looked up
NO_ATTRIBUTE = "<no attribute>"  # the name under which the object stands that an AttributeError is about
MAX_LOCALS = 1000  # names of a frame among which loaders, modules and tensors with a graph are looked for
MAX_REFERENCED = 16  # such values of a frame
WITHOUT_GRADIENT = "<no gradient>"  # the name under which the parameters stand that DDP waits for
INDICES = re.compile(r"did not receive grad for rank \d+:((?: \d+)+)")
SAMPLE = "<sample>"  # the name under which the sample of a batch stands that is None
MAX_ROWS, MAX_PATH = 10_000, 1000  # rows of a table that are looked at; characters of a path
MAX_MAKERS, MAX_LINES = 12, 300  # names in the lines that assign the names of a failing line; lines above it


class Reader:
    """Describes values as plain dicts until its time is up."""

    def __init__(self) -> None:
        self.end = time.thread_time() + SECONDS  # of this thread: a loaded machine takes nothing from it
        self.torch: Any = sys.modules.get("torch")
        self.numpy: Any = sys.modules.get("numpy")
        self.root: Any = None  # the outermost module of the traceback; paths start there
        self.paths: dict[int, str] = {}
        self.tensors: dict[int, dict[str, Any]] = {}  # by id: several frames name the same tensor

        nn = getattr(self.torch, "nn", None)  # which may be half imported
        self.module_class: Any = getattr(nn, "Module", ())
        self.tensor_classes = [getattr(self.torch, "Tensor", None), getattr(nn, "Parameter", None)]

    def late(self) -> bool:
        return time.thread_time() > self.end

    def is_module(self, value: Any) -> bool:
        return issubclass(type(value), self.module_class)

    def is_tensor(self, value: Any) -> bool:
        return type(value) in self.tensor_classes

    def describe(self, value: Any, depth: int = 1) -> dict[str, Any]:
        """Return the kind and type of a value, and what its kind has: shape, dtype, length, text and the like."""
        kind = type(value)
        result: dict[str, Any] = {"kind": "object", "type": kind.__qualname__}
        if kind in PLAIN:
            return {**result, "kind": "plain", "text": repr(value)[:MAX_TEXT]}
        if kind in (str, bytes):
            return {**result, "kind": "text", "length": len(value), "text": repr(value)[:MAX_TEXT]}
        if self.is_tensor(value):
            if id(value) not in self.tensors:
                self.tensors[id(value)] = self.tensor(value)
            return {**result, **self.tensors[id(value)]}
        if kind is getattr(self.numpy, "ndarray", None):
            return {**result, "kind": "array", "shape": list(value.shape), "dtype": str(value.dtype)} | self.range(
                value
            )
        if issubclass(kind, getattr(self.numpy, "generic", ())):
            return {**result, "kind": "numpy_scalar", "text": str(value.item())[:MAX_TEXT]}
        if self.late():  # shapes and numbers cost nothing and are always read
            return result
        if self.is_module(value):
            return {**result, **self.module(value)}
        fields = kind.__dict__.get("_fields")
        if issubclass(kind, tuple) and type(fields) is tuple:
            result["fields"] = list(fields)
            value = tuple.__getitem__(value, slice(None))
        elif kind is not dict and issubclass(kind, dict):  # without the methods of the class
            value = dict(dict.items(value))
        if type(value) in (list, tuple, set, frozenset, dict):
            return {**result, **self.container(value, depth)}
        if issubclass(kind, type) or (callable(value) and kind.__module__ in ("builtins", "torch")):
            name = type.__getattribute__(value, "__qualname__") if issubclass(kind, type) else value.__qualname__
            text = name if isinstance(name, str) else ""
            return {**result, "kind": "callable", "text": text, "parameters": parameters(value)}
        return {**result, **self.library_object(value, depth)}

    def tensor(self, value: Any) -> dict[str, Any]:
        result = {
            "kind": "tensor",
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": str(value.device),
            "requires_grad": bool(value.requires_grad),
            "made_by": type(value.grad_fn).__name__ if value.grad_fn is not None else None,
        }
        if value.device.type == "cpu" and value.layout is self.torch.strided and 0 < value.numel() <= COUNTED:
            with suppress(Exception):  # through numpy, which starts no threads: the process may be a forked worker
                result |= self.range(value.detach().numpy())
        return result

    def range(self, array: Any) -> dict[str, Any]:
        """Return the smallest and largest value of small arrays, where they stand, and a few distinct values."""
        if array.dtype.kind not in "iubf" or not 0 < array.size <= COUNTED or self.late():
            return {}
        if array.dtype.kind == "f":
            finite = bool(self.numpy.isfinite(array.sum()))
            return {"min": float(array.min()), "max": float(array.max())} if finite else {"not_finite": True}
        result: dict[str, Any] = {"min": int(array.min()), "max": int(array.max())}
        if array.ndim == 1:
            result |= {"argmin": int(array.argmin()), "argmax": int(array.argmax())}
        if array.size <= COUNTED // 10 and array.dtype.kind in "iu":
            ordered = self.numpy.sort(array, axis=None)  # `unique` imports numpy.ma, which takes all of the time
            distinct = ordered[self.numpy.append(True, ordered[1:] != ordered[:-1])]
            result["distinct"] = [int(number) for number in (distinct if len(distinct) <= 12 else distinct[-3:])]
            result["distinct_count"] = len(distinct)
        return result

    def name_modules(self, root: Any) -> None:
        """Remember the path of each module below the outermost one, which may be half built."""
        self.root = root
        for path, module in self.named_modules(root):
            self.paths[id(module)] = path

    def module(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        own = not kind.__module__.startswith(("torch.nn.", "torchvision."))
        result: dict[str, Any] = {
            "kind": "module",
            "own": own,
            "path": self.paths.get(id(value)),
            "text": kind.__name__,
        }
        result["training"] = stored(value).get("training")
        with suppress(Exception):  # one that is half built raises
            result["text"] += "" if own else f"({value.extra_repr()[:MAX_TEXT]})"
        children = [[name, type(child).__name__] for name, child in (stored(value).get("_modules") or {}).items()]
        if children:
            result |= {"children": children[:MAX_NAMES], "last": children[-3:]}
        return result | self.parts(value)

    def parts(self, root: Any) -> dict[str, Any]:
        """Return the parameters that a module trains, and the tensors in its plain attributes, which `to` leaves."""
        trained: list[str] = []
        without: list[str] = []
        plain: list[list[str | None]] = []
        frozen, dtype = 0, None
        for path, module in self.named_modules(root):
            for name, parameter in (stored(module).get("_parameters") or {}).items():
                if dtype is None and self.is_tensor(parameter) and parameter.is_floating_point():
                    dtype = str(parameter.dtype).removeprefix("torch.")
                if self.is_tensor(parameter) and parameter.requires_grad:
                    trained.append(f"{path}.{name}" if path else name)
                    if parameter.is_leaf and parameter.grad is None:
                        without.append(trained[-1])
                elif parameter is not None:
                    frozen += 1
            buffers = [(n, b) for n, b in (stored(module).get("_buffers") or {}).items() if self.is_tensor(b)]
            with_graph = [(name, buffer) for name, buffer in buffers if buffer.grad_fn is not None]
            for name, item in [*list(stored(module).items())[:MAX_ITEMS], *with_graph]:
                first = item[0] if type(item) in (list, tuple) and item else item
                if self.is_tensor(first) and len(plain) < MAX_NAMES:
                    made_by = type(first.grad_fn).__name__ if first.grad_fn is not None else None
                    made_by = "weight_norm" if f"{name}_g" in (stored(module).get("_parameters") or {}) else made_by
                    plain.append([path, name, type(module).__name__, str(first.device), made_by])
        result = {"trained": [*trained[:2], *trained[2:][-2:]], "trained_count": len(trained), "frozen_count": frozen}
        result |= {"without_grad": without[:MAX_NAMES], "without_grad_count": len(without)}
        return {**result, "plain_tensors": plain, "weight_dtype": dtype}

    def named_modules(self, root: Any) -> list[tuple[str, Any]]:
        """Return a module and those below it with their paths, in the order in which torch counts parameters."""
        todo: list[tuple[str, Any]] = [("", root)]
        result: list[tuple[str, Any]] = []
        visited: set[int] = set()
        while todo and len(result) < MAX_MODULES and not self.late():
            path, module = todo.pop()
            if module is None or id(module) in visited:
                continue
            visited.add(id(module))
            result.append((path, module))
            children = stored(module).get("_modules") or {}
            todo += [(f"{path}.{name}" if path else name, child) for name, child in reversed(list(children.items()))]
        return result

    def without_gradient(self, traces: list[TracebackType], message: str) -> list[str]:
        """Return the names of the parameters that DistributedDataParallel numbers in its message."""
        wrapped = [entry.tb_frame.f_locals.get("self") for entry in traces]
        model = next((w for w in reversed(wrapped) if type(w).__name__ == "DistributedDataParallel"), None)
        names: dict[int, str] = {}  # by id: what several modules share is counted once
        for path, module in self.named_modules((stored(model).get("_modules") or {}).get("module")):
            for name, parameter in (stored(module).get("_parameters") or {}).items():
                if parameter is not None and parameter.requires_grad:
                    names.setdefault(id(parameter), f"{path}.{name}" if path else name)
        indices = [int(number) for match in INDICES.findall(message) for number in match.split()]
        return [[*names.values()][index] for index in indices[:MAX_ITEMS] if index < len(names)]

    def container(self, value: Any, depth: int) -> dict[str, Any]:
        items = list(value.values() if isinstance(value, dict) else value) if len(value) <= 10_000 else []
        result: dict[str, Any] = {"kind": "container", "length": len(value)}
        if isinstance(value, dict):
            result["keys"] = [
                key if isinstance(key, str) else repr(key)[:MAX_TEXT]
                for key in list(value)[:MAX_ITEMS]
                if type(key) in (*PLAIN, str)
            ]
            result["lengths"] = {
                name: len(item)
                for name, item in list(value.items())[:MAX_ITEMS]
                if type(name) is str and type(item) in (list, tuple, dict)
            }
        result["types"] = sorted({type(item).__qualname__ for item in items[:1000]})
        if items and all(type(item) is int for item in items[:MAX_ITEMS]):
            result["numbers"] = items[:MAX_ITEMS]
        if depth > 0:
            result["items"] = [self.describe(item, depth - 1) for item in items[:3]]
        return result

    def has_shape(self, value: Any) -> bool:
        return self.is_tensor(value) or type(value) is getattr(self.numpy, "ndarray", None)

    def library_object(self, value: Any, depth: int) -> dict[str, Any]:
        """Return what is known of objects of well-known libraries; of a user's object its plain attributes."""
        kind = type(value)
        place = kind.__module__
        bases = {base.__name__ for base in kind.__mro__ if base.__module__.startswith("torch.utils.data")}
        if is_path(value):
            return {"kind": "path", "text": str(value)[:MAX_TEXT]}
        if place.startswith("PIL."):
            return {"kind": "image", "mode": value.mode, "size": list(value.size)}
        if place.partition(".")[0] == "pandas" and kind.__name__ in ("DataFrame", "Series"):
            with suppress(Exception):  # one that is half built raises
                return self.table(value)
            return {"kind": "object"}
        attributes = stored(value)
        result: dict[str, Any] = {"module": place}
        if "DataLoader" in bases:
            parts = {name: self.describe(attributes.get(name), 1) for name in ("dataset", "sampler")}
            return {**result, "kind": "loader", **{n: attributes.get(n) for n in ("batch_size", "drop_last")}, **parts}
        if "Dataset" in bases:
            result["kind"] = "dataset"
        if place.startswith("torch.utils.data") and kind.__name__ in ("TensorDataset", "Subset"):
            with suppress(Exception):  # one that is half built raises
                result["length"] = len(value)
        if "state" in attributes and "param_groups" in attributes:
            result["kind"] = "optimizer"
            result["groups"] = [len(group.get("params", ())) for group in attributes["param_groups"]]
        elif depth > 0:
            result["attributes"] = {
                name: self.describe(item, 0)
                for name, item in list(attributes.items())[:MAX_NAMES]
                if isinstance(name, str)
            }
        return result

    def table(self, value: Any) -> dict[str, Any]:
        result: dict[str, Any] = {"kind": "table", "shape": list(value.shape)}
        if hasattr(value, "columns"):
            result["columns"] = [str(name)[:MAX_TEXT] for name in list(value.columns[:MAX_ITEMS])]
            result["dtypes"] = [str(dtype) for dtype in list(value.dtypes)[:MAX_ITEMS]]
            result |= self.cells(value.iloc[:MAX_ROWS, :MAX_ITEMS])
        index = value.index
        result["index"] = (
            {"type": type(index).__name__, "first": label(index[0]), "last": label(index[-1])} if len(index) else {}
        )
        return result

    def cells(self, rows: Any) -> dict[str, Any]:
        """Return by column the first text beside numbers, and the first row where a value is missing."""
        texts: dict[str, Any] = {}
        missing: dict[str, Any] = {}
        for position, name in enumerate(rows.columns):
            column = rows.iloc[:, position]
            empty = column.isna().to_numpy()
            if empty.any():
                row = int(empty.argmax())
                whole = {
                    str(key)[:MAX_TEXT]: repr(item)[:40] for key, item in rows.iloc[row].items() if type(item) is str
                }
                where = label(rows.index[row])
                missing[str(name)[:MAX_TEXT]] = {"count": int(empty.sum()), "row": where, "texts": whole}
            if column.dtype.kind not in "biufc":
                odd = [
                    (row, item) for row, item in enumerate(column.tolist()) if type(item) is str and not number(item)
                ]
                if odd:
                    where, few = label(rows.index[odd[0][0]]), list(dict.fromkeys(item[:40] for _, item in odd))
                    texts[str(name)[:MAX_TEXT]] = {"count": len(odd), "row": where, "values": few[:4]}
            if self.late():
                break
        return {"texts": texts, "missing": missing, "rows": len(rows)}

    def sample(self, local: dict[str, Any]) -> dict[str, Any]:
        """Return the index of the first sample of a batch that is None, and what lists of the data set hold there."""
        data, indices, dataset = local["data"], local["possibly_batched_index"], stored(local["self"])["dataset"]
        position = next(position for position, item in enumerate(data) if item is None)
        index = indices[position]
        while type(dataset).__name__ == "Subset" and type(dataset).__module__.startswith("torch."):
            index, dataset = stored(dataset)["indices"][index], stored(dataset)["dataset"]
        lists = {name: item for name, item in stored(dataset).items() if type(item) in (list, tuple)}
        rows = {name: item[index] for name, item in lists.items() if 0 <= index < len(item)}
        plain = {name: row for name, row in rows.items() if type(row) in (str, *PLAIN) or is_path(row)}
        entries = {name: str(row)[:MAX_PATH] for name, row in plain.items()}
        return {"kind": "sample", "index": index, "entries": entries, "type": type(dataset).__qualname__}

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute that is stored, without running a property; raises LookupError."""
        for holder in self.holders(value):
            if type(holder) in (dict, OrderedDict) and name in holder:
                return holder[name]
        for base in type(value).__mro__:
            if name in base.__dict__ and type(base.__dict__[name]) in (*PLAIN, str, list, tuple, dict):
                return base.__dict__[name]
        if type(value) is type(sys):
            return value.__dict__[name]
        raise LookupError(name)

    def holders(self, value: Any) -> list[Any]:
        """Return the dicts in which an object stores its attributes; a module has more than one."""
        names = ("_modules", "_parameters", "_buffers") if self.is_module(value) else ()
        return [stored(value), *(stored(value).get(name) or {} for name in names)]

    def lookup(self, dotted: str, frame: FrameType, local: dict[str, Any]) -> Any:
        """Return the value of `a.b.c` in a frame; raises LookupError."""
        first, *rest = dotted.split(".")
        value = local[first] if first in local else frame.f_globals[first]
        for name in rest:
            value = self.attribute(value, name)
        return value

    def frame(self, trace: TracebackType, own: bool) -> dict[str, Any]:
        """Return one frame: file, line, function, the failing expression, and the values by their names."""
        frame, code = trace.tb_frame, trace.tb_frame.f_code
        line = trace.tb_lineno or 0
        result: dict[str, Any] = {"file": code.co_filename, "line": line, "function": code.co_name, "own": own}
        local = dict(frame.f_locals)
        result["code"] = linecache.getline(code.co_filename, line).strip()[:1000] if own else ""
        values: dict[str, Any] = {}
        if own:
            text, result["expression"] = failing_text(trace)
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            names = list(dict.fromkeys([*with_prefixes(NAMES.findall(text)), *arguments]))[:MAX_NAMES]
            makers = names_in_makers(set(names), code.co_filename, max(code.co_firstlineno, line - MAX_LINES), line)
            for name in dict.fromkeys([*names, *makers[:MAX_MAKERS]]):
                with suppress(Exception):
                    value = self.lookup(name, frame, local)
                    if type(value) is not type(sys):
                        values[name] = self.describe(value, 2)
            referenced = list(local) if code.co_name != "<module>" else []
            most = len(values) + MAX_REFERENCED
            for name in [*referenced, *code.co_names][:MAX_LOCALS]:
                value = local.get(name, frame.f_globals.get(name))
                with suppress(Exception):  # a view that was changed in place raises where its graph is asked for
                    if name not in values and len(values) < most and self.explains_much(value):
                        values[name] = self.describe(value, 1)
        else:
            first = list(local.items())[:MAX_NAMES]
            wanted = [n for n, v in first if type(v) in (int, list, tuple) or self.has_shape(v) or n in LIBRARY_NAMES]
            values = {name: self.describe(local[name], 1) for name in wanted[:LIBRARY_ARGUMENTS]}
            if code.co_name == "fetch" and type(local.get("data")) is list and any(x is None for x in local["data"]):
                with suppress(Exception):
                    values[SAMPLE] = self.sample(local)
        result["values"] = values
        return result

    def explains_much(self, value: Any) -> bool:
        """Whether a value may explain a failure of another line: a loader, a model, a tensor with a graph, a loss."""
        loader = any(base.__name__ == "DataLoader" for base in type(value).__mro__)
        graph = self.is_tensor(value) and (value.grad_fn is not None or value.numel() == 1)
        return loader or graph or self.is_module(value) or issubclass(type(value), getattr(self.numpy, "generic", ()))

    def called(self, trace: TracebackType) -> dict[str, Any]:
        """Return the classes and functions that the line of a library names, by their names."""
        frame = trace.tb_frame
        values = {}
        for name in list(dict.fromkeys(NAMES.findall(failing_text(trace)[0])))[:MAX_NAMES]:
            with suppress(Exception):
                value = self.lookup(name, frame, frame.f_locals)
                if issubclass(type(value), type) or type(value) is FunctionType:
                    values[name] = self.describe(value)
        return values

    def without_attribute(self, error: AttributeError) -> dict[str, Any]:
        """Return the object that lacks an attribute, with the names that it has and those of similar spelling."""
        value: Any = error.obj
        wanted, bases = str(error.name), type.mro(value) if issubclass(type(value), type) else []
        holders = [*self.holders(value), *(base.__dict__ for base in [*type(value).__mro__, *bases])]
        names = [name for holder in holders for name in holder if type(name) is str and not name.startswith("__")]
        near = [name for name in names if name.lower() == wanted.lower()]
        near = near or difflib.get_close_matches(wanted, names[:MAX_LOCALS], 2, 0.8)
        result = {**self.describe(value, 2), "near": list(dict.fromkeys(near)), "has": list(holders[0])[:MAX_NAMES]}
        return result | self.wrapped(value, wanted)

    def wrapped(self, value: Any, name: str) -> dict[str, Any]:
        """Return the way from a part of a data set to the attribute of the whole, and whether each sample has a value.

        A part (`Subset`) holds a data set and indices.
        """
        path: list[str] = []
        indices: Any = None
        while type(value).__name__ == "Subset" and type(value).__module__.startswith("torch."):
            indices = stored(value).get("indices")
            path, value = [*path, "dataset"], stored(value).get("dataset")
        if not path:
            return {}
        inner = self.describe(stored(value).get(name), 0)
        length = inner.get("length", (inner.get("shape") or [0])[0])
        whole = type(indices) in (list, range) and 0 < len(indices) <= COUNTED and all(type(i) is int for i in indices)
        by_sample = name in stored(value) and length > max(indices) if whole else None
        return {"way": path, "inner": inner, "by_sample": by_sample}


def parameters(value: Any) -> list[str] | None:
    """Return the names of the parameters of a function or class written in Python; None where they are not known."""
    if issubclass(type(value), type):
        functions = [base.__dict__["__init__"] for base in type.mro(value) if "__init__" in base.__dict__]
    else:
        functions = [value.__func__ if type(value) is MethodType else value]
    names: list[str] = []
    for function in functions:
        while type(function) is FunctionType and type(function.__dict__.get("__wrapped__")) is FunctionType:
            function = function.__dict__["__wrapped__"]
        if type(function) is not FunctionType:
            break
        code = function.__code__
        names += code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not code.co_flags & 0x08:  # without **options the classes below it get no names from the caller
            break
    return [name for name in dict.fromkeys(names) if name not in ("self", "cls")][:MAX_ITEMS] or None


def label(value: Any) -> str:
    """Return the label of a row; of a class of the program only its name."""
    place = type(value).__module__.partition(".")[0]
    is_plain = type(value) in (*PLAIN, str) or place in ("pandas", "numpy", "datetime")
    return repr(value)[:40] if is_plain else type(value).__qualname__


def is_path(value: Any) -> bool:
    """Whether a value is a path of the standard library."""
    return type(value).__module__.partition(".")[0] == "pathlib"


def number(text: str) -> bool:
    """Whether a text is a number."""
    with suppress(ValueError):
        float(text)
        return True
    return False


def with_prefixes(names: list[str]) -> list[str]:
    """Return `a`, `a.b` and `a.b.c` for each `a.b.c`."""
    parts = [name.split(".") for name in names]
    return [".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)]


def names_in_makers(names: set[str], file: str, first: int, last: int) -> list[str]:
    """Return the names in the last lines before a line that assign to some names, and to the names in those lines."""
    result: list[str] = []
    for number in range(last - 1, first - 1, -1):
        left, equals, right = linecache.getline(file, number).partition("=")
        targets = names.intersection(re.split(r"[\s,()]+", left)) if equals and right[:1] != "=" else set()
        if targets:
            makers = with_prefixes(NAMES.findall(right))
            result += makers
            names = names - targets | set(makers)
    return result


def stored(value: Any) -> dict[str, Any]:
    """Return the attributes that an object stores, without running a property of its class."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def failing_text(trace: TracebackType) -> tuple[str, str]:
    """Return the source lines that a frame was executing, and the part of them that failed (from Python 3.11 on)."""
    code, line = trace.tb_frame.f_code, trace.tb_lineno or 0
    last, first_column, last_column = line, None, None
    positions = getattr(code, "co_positions", None)
    if positions is not None and 0 <= trace.tb_lasti < MAX_CODE:
        start, end, first_column, last_column = next(itertools.islice(positions(), trace.tb_lasti // 2, None))
        line, last = start or line, end or start or line
    lines = [
        linecache.getline(code.co_filename, number).rstrip("\n") for number in range(line, min(last, line + 20) + 1)
    ]
    whole = "\n".join(lines)
    if first_column is None or last_column is None or not lines:
        return whole, ""
    cut = [text.encode() for text in lines]
    cut[-1] = cut[-1][:last_column]
    cut[0] = cut[0][first_column:]
    return whole, b"\n".join(cut).decode("utf-8", "replace")[:1000]


def collect(error: BaseException, is_own: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return the last frames of an exception with the values that their lines used, outermost first."""
    reader = Reader()
    traces = []
    trace = error.__traceback__
    while trace is not None:
        traces.append(trace)
        trace = trace.tb_next
    for entry in traces:
        owner = entry.tb_frame.f_locals.get("self")
        if reader.root is None and reader.is_module(owner):
            reader.name_modules(owner)
    result = [reader.frame(entry, is_own(entry.tb_frame.f_code.co_filename)) for entry in traces[-MAX_FRAMES:]]
    if result and isinstance(error, TypeError) and not result[-1]["own"]:
        result[-1]["values"] |= reader.called(traces[-1])
    if result and type(error) is AttributeError and type(error.name) is str:
        with suppress(Exception):
            result[-1]["values"][NO_ATTRIBUTE] = reader.without_attribute(error)
    if result and type(error) is RuntimeError and error.args and type(error.args[0]) is str:
        names = reader.without_gradient(traces, error.args[0]) if "did not receive grad" in error.args[0] else []
        result[-1]["values"] |= {WITHOUT_GRADIENT: {"kind": "names", "type": "list", "names": names}} if names else {}
    while len(result) > 1 and len(repr(result)) > MAX_RECORD:
        del result[0]
    return result
