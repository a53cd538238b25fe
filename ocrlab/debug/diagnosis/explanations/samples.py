"""Data sets and data loaders: indices past the end, samples of the wrong type, nothing to load, nothing to pickle."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from ocrlab.debug.diagnosis.explanations.checkpoints import state_dict_without_entry
from ocrlab.debug.diagnosis.explanations.explanation import (
    Edit,
    Explanation,
    changed,
    count,
    explains,
    listed,
    replaced,
)
from ocrlab.debug.diagnosis.explanations.failure import Failure, Frame, Value
from ocrlab.debug.diagnosis.explanations.messages import Fact, facts
from ocrlab.debug.diagnosis.explanations.origins import Origin, failing_call, failing_expression, origin
from ocrlab.debug.diagnosis.explanations.source import (
    Source,
    argument,
    constant,
    dotted,
    last_name,
    own_nodes,
    parameters,
    why_none,
)

MAX_FILES = 2000  # that are looked at in a folder


def method(source: Source, owner: ast.ClassDef | None, name: str) -> ast.FunctionDef | None:
    """Return a method of a class."""
    return (
        next((node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
        if owner
        else None
    )


def returned(function: ast.FunctionDef | None) -> ast.expr | None:
    """Return the expression that a function returns, if it has one return."""
    values = [node.value for node in own_nodes(function) if isinstance(node, ast.Return)] if function else []
    return values[0] if len(values) == 1 else None


@explains("index")
def index_past_the_end(fact: Fact, failure: Failure) -> Explanation | None:
    """An index that a tensor, an array or a list does not have."""
    frame, source = failure.frame, failure.source(failure.frame)
    if frame is None:
        return None
    dataset = source.class_at(frame.line) if source and frame.function == "__getitem__" else None
    length = method(source, dataset, "__len__") if source else None
    place = failing_expression(failure, frame, ast.Subscript)
    code = place[0].code(place[1]) if place else frame.expression or frame.code
    base = place[1].value if place and isinstance(place[1], ast.Subscript) else None
    name = place[0].code(base) if place and base is not None else ""
    value = failure.value(name) if name else None
    size = (
        fact.size
        if fact.size is not None
        else value.length
        if value and value.length is not None
        else (value.shape[0] if value and value.shape else None)
    )
    if dataset is not None and length is not None and source is not None:
        body = returned(length)
        index = next(
            (
                frame.values[p].number
                for p in parameters(method(source, dataset, "__getitem__") or length)[1:2]
                if p in frame.values
            ),
            None,
        )
        inner = place[1].slice if place and isinstance(place[1], ast.Subscript) else None
        offset = inner.right if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add) else None
        text = (
            f"`{code}` ({frame.place}) reads element "
            f"{fact.index if fact.index is not None else 'after the last one'} of "
            f"{f'`{name}`' if name else 'a list'}"
        )
        text += f", which has {size}." if size is not None else "."
        text += f" `{dataset.name}.__len__` returns `{source.code(body)}`" + (
            f" = {size}" if body is not None and size is not None and name and name in source.code(body) else ""
        )
        if offset is not None and body is not None:
            step = failure.value(dotted(offset)) if dotted(offset) else None
            number = constant(offset) if constant(offset) is not None else step.number if step else None
            text += (
                ", but a sample at index i also needs element i + "
                f"{number if number is not None else source.code(offset)}"
            )
            text += (
                f", so only {int(size) - int(number)} indices are valid."
                if size is not None and isinstance(number, int | float)
                else "."
            )
            after = f"{source.code(body)} - {source.code(offset)}"
            return Explanation(
                text,
                f"Make it shorter: `return {after}` in `__len__`.",
                replaced(source, body.lineno, source.code(body), after),
            )
        other = source.code(body) if body is not None else "another number"
        text += (
            "."
            if name and body is not None and name in source.code(body)
            else f", which is not the length of `{name}`."
            if name
            else "."
        )
        text += f" Index {index} was asked for." if index is not None else ""
        return Explanation(
            text,
            f"Let `__len__` return the number of samples that exist: `return len({name})`."
            if name and name not in other
            else "Let `__len__` count only indices for which `__getitem__` finds everything it reads.",
        )
    if fact.empty or fact.container == "pop":
        return Explanation(
            f"`{code}` takes an element of an empty list.",
            "Check that there is one, or look at why the list is empty here.",
        )
    if size == 0:
        return Explanation(
            f"`{code}` ({frame.place}): `{name}` is empty.",
            "Look at what fills it: a filter or a search that matches nothing, or a loop that did not run.",
        )
    if name and size is not None:
        used = fact.index if fact.index is not None else _index_value(failure, place)
        text = (
            f"`{code}` ({frame.place}): `{name}` has {count(size, 'element')} in axis {fact.axis}"
            if fact.axis is not None and fact.axis > 0
            else f"`{code}` ({frame.place}): `{name}` has {count(size, 'element')}"
        )
        text += f", so the last index is {size - 1}" + (f", but {used} was asked for." if used is not None else ".")
        if used == size:
            return Explanation(
                f"{text} Counting from 1, or one step too many, gives exactly this.",
                "Count from 0 to the length minus one; check `range` and `+ 1` in the index.",
            )
        return Explanation(
            text,
            "Look at where the index comes from: another list, an index of the whole data set, or labels that do "
            "not start at 0.",
        )
    return None


def _index_value(failure: Failure, place: tuple[Source, ast.AST] | None) -> float | int | None:
    inner = place[1].slice if place and isinstance(place[1], ast.Subscript) else None
    literal = constant(inner)
    if isinstance(literal, int):
        return literal
    value = failure.value(dotted(inner)) if inner is not None and dotted(inner) else None
    return value.number if value else None


@explains("split_lengths")
def split_that_loses_samples(fact: Fact, failure: Failure) -> Explanation | None:
    """Lengths for random_split that do not add up, mostly from rounding."""
    place = failing_call(failure, failure.frame, "random_split")
    code = f"`{place[0].code(place[1])}` ({place[0].place(place[1])})" if place else "`random_split`"
    dataset = place[0].code(place[1].args[0]) if place and place[1].args else "dataset"
    return Explanation(
        f"The lengths of {code} do not add up to the length of the data set{_sum_and_length(failure, place)}: shares "
        "that are cut to whole numbers with `int(...)` lose a sample or two by rounding.",
        f"Give shares, which it rounds itself: `random_split({dataset}, [0.8, 0.2])`; or take the rest for the last "
        "part: "
        f"`len({dataset}) - n_train`.",
    )


def _sum_and_length(failure: Failure, place: tuple[Source, ast.Call] | None) -> str:
    """Return `: 289 + 61 + 61 = 411 and not 413`, as far as it is known."""
    if place is None or len(place[1].args) < 2:
        return ""
    parts = failure.value(dotted(place[1].args[1]))
    whole = failure.value(dotted(place[1].args[0]))
    length = whole.length if whole and whole.length is not None else (whole.shape or (None,))[0] if whole else None
    numbers = parts.numbers if parts else None
    if not numbers and isinstance(place[1].args[1], ast.List | ast.Tuple):
        values = [_whole_number(failure, node) for node in place[1].args[1].elts]
        numbers = values if None not in values else None
    if not numbers:
        return ""
    rest = f" and not {length}" if length is not None else ""
    return f": {' + '.join(map(str, numbers))} = {sum(numbers)}{rest}"


def _whole_number(failure: Failure, node: ast.expr) -> int | None:
    number = constant(node)
    value = failure.value(dotted(node)) if dotted(node) else None
    number = value.number if value is not None else number
    return number if isinstance(number, int) else None


@explains("loader_option")
def options_that_exclude_each_other(fact: Fact, failure: Failure) -> Explanation | None:
    """Options of a DataLoader that need workers, or that exclude each other."""
    place = failing_call(failure, failure.frame, "DataLoader")
    code = f"`{place[0].code(place[1])}` ({place[0].place(place[1])})" if place else "The DataLoader"
    option = str(fact.option)
    if option in ("prefetch_factor", "persistent_workers"):
        return Explanation(
            f"{code} sets `{option}`, which concerns worker processes, but has none (`num_workers=0`).",
            f"Set `num_workers` to 1 or more, or leave `{option}` out.",
        )
    return Explanation(
        f"{code} has `{option}` beside an option that it replaces (`shuffle`, `batch_size`, `sampler`, `drop_last`).",
        f"Keep `{option}` and remove the others; a sampler decides the order itself (`RandomSampler` shuffles).",
    )


@explains("zero_division")
def division_by_nothing(fact: Fact, failure: Failure) -> Explanation | None:
    """An average over no batches or no samples."""
    frame = failure.frame
    place = failing_expression(failure, frame, ast.BinOp, ast.AugAssign)
    if place is None or frame is None:
        return None
    node = place[1]
    divisor = node.right if isinstance(node, ast.BinOp) else node.value if isinstance(node, ast.AugAssign) else None
    code = place[0].code(divisor)
    loader = next(
        (v for _, v in failure.values() if v.kind == "loader" and (v.name in code or isinstance(divisor, ast.Name))),
        None,
    )
    text = f"`{code}` is 0 in `{place[0].code(node)}` ({frame.place})."
    if loader is not None:
        from ocrlab.debug.diagnosis.explanations.batch_shapes import dataset_length

        length = dataset_length(loader)
        if loader.drop_last and length is not None and length < (loader.batch_size or 1):
            return Explanation(
                f"{text} `{loader.name}` gives no batch: `drop_last=True` leaves out the last batch, and "
                f"{count(length, 'sample')} do not fill one of {loader.batch_size}.",
                "Use a smaller batch size, or `drop_last=False` for validation.",
            )
        return Explanation(
            f"{text} `{loader.name}` gives no batch"
            + (f": its data set has {count(length, 'sample')}." if length is not None else "."),
            "Look at why the data set is empty: the folder, the filter or the split.",
        )
    return Explanation(text, "Look at why nothing was counted, or guard the division: `x / max(n, 1)`.")


@explains("collate_type", "sample_none")
def sample_of_wrong_type(fact: Fact, failure: Failure) -> Explanation | None:
    """A sample that is None, an image, or another object that cannot be put into a batch."""
    kind = str(fact.type or fact.object or "")
    missing = failure.missing_sample
    in_collate = missing is not None or any("collate" in frame.file for frame in failure.frames)
    if fact.kind == "sample_none" and not in_collate:
        return _not_a_tensor(kind, failure) if "infer dtype" in failure.message else None
    where = _getitem(failure)
    name = f"`{where[1].name}.__getitem__` ({where[0].place(where[2])})" if where else "`__getitem__`"
    if kind.endswith("NoneType"):
        which = "a sample"
        if missing is not None:
            entries = [f"`{key}[{missing.index}]` is {item!r}{_on_disk(item)}" for key, item in missing.entries.items()]
            which = f"sample {missing.index}" + (f" ({listed(entries, 3)})" if entries else "")
        text = f"{name} returned None for {which}"
        why = why_none(where[0], where[2], where[1]) if where is not None else ""
        find = "" if missing is not None else " To find it, print the index before that `return`."
        unread = " Do not hide what is wrong with it: log the file in the `except`." if "raises" in why else ""
        return Explanation(
            f"{text}{why}, and None cannot be put into a batch.",
            "Leave such samples out of the data set's list at the start (in `__init__`), or drop them in a "
            f"`collate_fn`: `default_collate([s for s in batch if s is not None])`.{find}{unread}",
        )
    if "PIL" in kind or kind == "object" or "Image" in kind:
        text = f"{name} returns a PIL image, and a batch is made of tensors."
        edit = None
        transform = next(((s, c) for s in failure.all_sources() for c in s.calls("Compose")), None)
        if transform is not None and not list(
            transform[0].calls("ToTensor", "PILToTensor", "to_tensor", "pil_to_tensor")
        ):
            text += (
                f" `{transform[0].code(transform[1])[:80]}` ({transform[0].place(transform[1])}) has no `ToTensor()`."
            )
        return Explanation(
            text,
            "End the transform with `transforms.ToTensor()` (or `v2.ToImage(), v2.ToDtype(torch.float32, "
            "scale=True)`).",
            edit,
        )
    return Explanation(
        f"{name} returns an object of the type {kind}, which cannot be put into a batch.",
        "Return tensors, arrays, numbers or texts (or dicts and tuples of them), or pass a `collate_fn` that knows "
        "this type.",
    )


def _on_disk(text: str) -> str:
    """Say how large the file of a path is; nothing for other texts."""
    path = Path(text)
    if not path.is_absolute():
        return ""
    try:
        return f", a file of {count(path.stat().st_size, 'byte')}"
    except OSError:
        return ", which does not exist"


def _not_a_tensor(kind: str, failure: Failure) -> Explanation | None:
    """Explain torch.tensor of an object that holds no numbers."""
    place = failing_call(failure, failure.frame, "tensor", "as_tensor", "Tensor")
    if place is None or not place[1].args or failure.frame is None:
        return None
    name = place[0].code(place[1].args[0])
    what = "is or holds None" if kind == "NoneType" else f"is or holds an object of the type {kind}"
    return Explanation(
        f"`{place[0].code(place[1])}` ({failure.frame.place}) needs numbers, and `{name}` {what}.",
        "Pass numbers or arrays: leave the missing values out, or give them a value (`0 if v is None else v`)."
        if kind == "NoneType"
        else f"Take the numbers out of it first: `list({name}.values())` of a dict, `{name}.to_numpy()` of a table.",
    )


@explains("already_converted")
def transform_of_wrong_type(fact: Fact, failure: Failure) -> Explanation | None:
    """A transform that gets a tensor where it takes an image, or the other way round."""
    kind = str(fact.type).rpartition(".")[2]
    frame = failure.frame
    transform = next(
        (
            f
            for f in reversed(failure.frames)
            if f.is_library and f.function in ("__call__", "forward") and "self" in f.values
        ),
        None,
    )
    name = f"`{transform.values['self'].type}`" if transform else "The transform"
    where = f" ({frame.place}: `{frame.expression or frame.code}`)" if frame else ""
    compose = next(((s, c) for s in failure.all_sources() for c in s.calls("Compose")), None)
    listed_ = (
        f" The transform is `{compose[0].code(compose[1])[:120]}` ({compose[0].place(compose[1])})." if compose else ""
    )
    if kind == "Tensor":
        return Explanation(
            f"{name} takes a PIL image or an array, but got a tensor{where}: the image was converted before.{listed_}",
            "Apply `ToTensor()` once, and put the transforms that need a PIL image before it.",
        )
    return Explanation(
        f"{name} takes a tensor, but got {'a PIL image' if 'Image' in kind else f'a {kind}'}{where}.{listed_}",
        "Put `ToTensor()` before it (`Normalize` comes after `ToTensor`).",
    )


def _getitem(failure: Failure) -> tuple[Source, ast.ClassDef, ast.FunctionDef] | None:
    """Return the `__getitem__` of the only data set of the program, or the one that the loader reads."""
    owners = [(s, node) for s in failure.all_sources() for node in s.nodes if isinstance(node, ast.ClassDef)]
    pairs = [(s, node, function) for s, node in owners if (function := method(s, node, "__getitem__")) is not None]
    dataset = next((value for _, value in failure.values() if value.name == "dataset" or value.kind == "dataset"), None)
    named = [pair for pair in pairs if dataset is not None and pair[1].name == dataset.type]
    chosen = named or pairs
    return chosen[0] if chosen else None


@explains("empty_dataset")
def nothing_to_load(fact: Fact, failure: Failure) -> Explanation | None:
    """A data set without samples: a pattern or a folder that matches no file."""
    frame = failure.frame
    search = _search(failure)
    if search is None:
        text = (
            "The data set has no samples"
            + (f": no file was found in {fact.folder}" if fact.folder else "")
            + (f" ({frame.place})." if frame else ".")
        )
        return Explanation(
            text,
            "Check the folder and the filter that makes the list of samples: print its length before the DataLoader "
            "is built.",
        )
    source, call, pattern, folder = search
    code = source.code(call)
    text = f"The data set is empty: `{code}` ({source.place(call)}) matches no file"
    if folder is None:
        return Explanation(
            f"{text}.",
            "Print the folder and what lies in it; files in subfolders need `rglob` or a pattern such as `*/*"
            + Path(pattern).suffix
            + "`, and a relative path depends on where the program was started.",
        )
    if not folder.is_dir():
        near = nearest_path(folder)
        return Explanation(
            f"{text}, as the folder {folder} does not exist{f'; {near} does' if near else ''}.",
            "Correct the path; a relative path is looked up in the folder where the program was started.",
        )
    suffix = Path(pattern).suffix
    below = _below(folder, suffix)
    if below:
        folders = sorted({path.parent.name for path in below})
        deeper = f"*/*{suffix}" if all(path.parent.parent == folder for path in below) else f"**/*{suffix}"
        text += (
            f" in {folder.name}/: its {count(len(below), 'file')} ({suffix}) lie one level deeper, in "
            f"{listed(folders)}."
            if deeper.startswith("*/")
            else f" in {folder.name}/: {count(len(below), 'file')} ({suffix}) lie in deeper folders."
        )
        after = code.replace(pattern, deeper, 1)
        return Explanation(text, f"Search the subfolders: `{after}`.", replaced(source, call.lineno, pattern, deeper))
    others = sorted({path.suffix for path in _below(folder, "") if path.suffix and path.suffix != suffix})
    same = [other for other in others if other.lower() == suffix.lower()]
    if same:
        return Explanation(
            f"{text} in {folder.name}/: the files end in {listed(same)}, and upper and lower case count.",
            f"Look for {same[0]} as well.",
        )
    return Explanation(
        f"{text} in {folder.name}/, which holds {'files that end in ' + listed(others) if others else 'no files'}.",
        "Correct the pattern or the folder.",
    )


def _search(failure: Failure) -> tuple[Source, ast.Call, str, Path | None] | None:
    for source in failure.all_sources():
        for call in source.calls("glob", "rglob", "iglob"):
            wanted = argument(call, 0, "pattern", "pathname")
            pattern = constant(origin(failure, source, wanted, None).node) if wanted is not None else None
            base = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(pattern, str) and base is not None and dotted(base) != "glob":
                return source, call, pattern, _path(failure, Origin(source, base, None), 6)
    return None


def _path(failure: Failure, where: Origin, steps: int) -> Path | None:
    """Return the path that an expression of paths and texts makes, from the values of the traceback's frames."""
    node = where.node
    literal = constant(node)
    if isinstance(literal, str):
        return Path(literal)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        left, right = (
            _path(failure, Origin(where.source, node.left, where.frame), steps),
            _path(failure, Origin(where.source, node.right, where.frame), steps),
        )
        return left / right if left is not None and right is not None else None
    if isinstance(node, ast.Call) and last_name(node.func) in ("Path", "str", "sorted", "list") and node.args:
        return _path(failure, Origin(where.source, node.args[0], where.frame), steps)
    name = dotted(node)
    if not name or steps <= 0:
        return None
    frames = [where.frame] if where.frame else failure.own_frames
    for frame in frames:
        value = frame.values.get(name)
        if value is not None and value.kind in ("path", "text") and failure.source(frame) is where.source:
            return Path(str(value.text).strip("'\""))
    following = origin(failure, where.source, node, where.frame, 1)
    if following.node is node:
        return None
    return _path(
        failure,
        following if following.frame else Origin(following.source, following.node, None, following.name),
        steps - 1,
    )


def _below(folder: Path, suffix: str) -> list[Path]:
    paths: list[Path] = []
    try:
        for number, path in enumerate(folder.rglob(f"*{suffix}")):
            if number >= MAX_FILES:
                break
            if path.is_file():
                paths.append(path)
    except OSError:
        return paths
    return paths


def nearest_path(path: Path) -> str:
    """Return the existing path that is most like one that does not exist; empty where none is."""
    whole = path if path.is_absolute() else Path.cwd() / path
    parent = whole
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    try:
        missing = whole.relative_to(parent).parts[0]
        names = [entry.name for entry, _ in zip(parent.iterdir(), range(MAX_FILES), strict=False)]
    except (OSError, ValueError, IndexError):
        return ""
    match = difflib.get_close_matches(missing, names, 1, 0.6)
    return str(parent / match[0]) if match else ""


def _padded_name(path: Path) -> str:
    """Return the file beside a missing one whose name has more zeros in front; '' for none."""
    if not path.stem.isdigit() or not path.parent.is_dir():
        return ""
    names = (f"{'0' * zeros}{path.name}" for zeros in range(1, 12))
    return next((name for name in names if (path.parent / name).exists()), "")


WRITERS = ("save", "dump", "to_csv", "to_", "write", "mkdir", "SummaryWriter", "FileHandler", "savefig")


def re_write(code: str) -> bool:
    """Whether a call of `open` names a mode that writes."""
    return "open(" in code and any(
        f"{quote}{mode}" in code
        for quote in "'\""
        for mode in ("w", "a", "x")
        if f"{quote}{mode}{quote}" in code or f"{quote}{mode}b{quote}" in code
    )


@explains("missing_file")
def name_without_its_folder(fact: Fact, failure: Failure) -> Explanation | None:
    """A name from `os.listdir`, which has no folder in front."""
    frame, source = failure.frame, failure.source(failure.frame)
    if frame is None or source is None or "/" in str(fact.path):
        return None
    for call in source.calls("listdir"):
        folder = source.code(call.args[0]) if call.args else "."
        loop = source.enclosing(frame.line, ast.For, ast.ListComp)
        iterated = loop.iter if isinstance(loop, ast.For) else None
        if iterated is None or not isinstance(loop, ast.For):
            continue
        definition = origin(failure, source, iterated, frame)
        if any(part is call for part in [*ast.walk(iterated), *ast.walk(definition.node)]):
            name = source.code(loop.target)
            after = f"os.path.join({folder}, {name})"
            code = frame.code
            return Explanation(
                f"`os.listdir({folder})` ({source.place(call)}) gives names without their folder, so `{code}` "
                f"({frame.place}) looks for `{fact.path}` in the folder where the program was started.",
                f"Join both: `{after}`.",
                replaced(source, frame.line, f"({name}", f"({after}"),
            )
    return None


@explains("missing_file")
def file_not_there(fact: Fact, failure: Failure) -> Explanation | None:
    """A path that does not exist, with the nearest one that does."""
    written, frame = str(fact.path), failure.frame
    path = Path(written)
    if frame is None or not (frame.expression or frame.code):
        return None
    code = frame.expression or frame.code
    if any(word in code for word in WRITERS) or re_write(code):
        text = f"`{code}` ({frame.place}) writes `{written}`, and its folder `{path.parent}` does not exist."
        return Explanation(text, f"Make the folder first: `os.makedirs({str(path.parent)!r}, exist_ok=True)`.")
    text = f"`{code}` ({frame.place}) opens `{written}`, which does not exist."
    moved = _changed_folder(failure, frame)
    if moved and not path.is_absolute():
        place, line = moved
        return Explanation(
            f"{text} A relative path is looked up in the working directory, and `{line}` ({place}) has changed that.",
            "Use absolute paths: `ROOT = Path.cwd()` before any change of the directory, then `ROOT / ...`; or change"
            " back with `os.chdir(...)`. A relative `chdir` goes one folder further each time it runs.",
        )
    padded = _padded_name(path if path.is_absolute() else Path.cwd() / path)
    if padded:
        tables = [(s, c) for s in failure.all_sources() for c in s.calls("read_csv", "read_table", "read_excel")]
        read = f" `{tables[0][0].code(tables[0][1])}` ({tables[0][0].place(tables[0][1])})" if tables else " A table"
        return Explanation(
            f"{text} `{path.parent}` has `{padded}`: the leading zeros are lost.{read} reads a column of digits as "
            "integers.",
            "Read that column as text, `pd.read_csv(..., dtype={'<column>': str})`, or write the zeros again: "
            f"`f'{{number:0{len(Path(padded).stem)}d}}'`.",
        )
    script = Path(frame.file).parent
    if not path.is_absolute() and frame.cell is None and script.is_dir():
        if (script / path).exists():
            return Explanation(
                f"{text} A relative path is looked up in the folder where the program was started; the file lies "
                f"beside the script, as {script / path}.",
                f'Make it independent of the start: `Path(__file__).parent / "{path}"`, or start the program in '
                f"{script}.",
            )
        near = nearest_path(script / path)
        text += " A relative path is looked up in the folder where the program was started."
    else:
        near = nearest_path(path)
    if near:
        return Explanation(
            f"{text} The nearest path that exists is {near}.",
            f"Use `{near}`, or correct the name in the list that it comes from.",
        )
    return Explanation(text, "Correct the path, or start the program in the folder that it is relative to.")


def _changed_folder(failure: Failure, frame: Frame) -> tuple[str, str] | None:
    """Return where, and by which line, the working directory was changed before a frame's line."""
    for cell in sorted(failure.cells, key=lambda cell: -(cell.count or 0)):
        for number, line in reversed([*enumerate(cell.text.splitlines(), 1)]):
            before = cell.count is not None and cell.count <= (frame.cell or 0)
            if before and line.strip().startswith(("%cd ", "os.chdir(", "chdir(")):
                return f"cell {cell.number}, line {number}", line.strip()
    source = failure.source(frame)
    calls = [call for call in source.calls("chdir") if call.lineno < frame.line] if source and not failure.cells else []
    return (source.place(calls[-1]), source.code(calls[-1])) if source and calls else None


@explains("pickle")
def cannot_be_pickled(fact: Fact, failure: Failure) -> Explanation | None:
    """A data set that a worker cannot receive: a lambda, a local class, an open file."""
    name = str(fact.object or "")
    local = "<locals>" in name or "<lambda>" in name or "lambda" in failure.message
    loader = next(((s, c) for s in failure.all_sources() for c in s.calls("DataLoader")), None)
    spawn = loader is not None and "spawn" in loader[0].code(loader[1])
    how = (
        "With the spawn start method a data worker receives the data set by pickle"
        if spawn
        else "A new process receives its objects by pickle (spawn, forkserver, or a queue)"
    )
    if local or name:
        outer, inner = name.split(".<locals>.")[0].rpartition(".")[2], name.rpartition(".")[2]
        for source in failure.all_sources():
            for function in source.functions(outer) if "<locals>" in name else []:
                for node in ast.walk(function):
                    if inner == "<lambda>" and isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                        variable = source.code(node.targets[0])
                        user = next(
                            (
                                source.code(c)
                                for c in ast.walk(function)
                                if isinstance(c, ast.Call) and any(dotted(a) == variable for a in c.args)
                            ),
                            "",
                        )
                        holder = f" `{user}` holds it." if user else ""
                        text = (
                            f"`{variable}` ({source.place(node)}) is a lambda inside of `{outer}`.{holder} "
                            f"{how}, and pickle stores a function by its name, which a lambda lacks."
                        )
                        return Explanation(
                            text,
                            "Write it as a named function (or a class with `__call__`) at the top level of the "
                            "module, with its settings bound by `functools.partial`; or use "
                            "`num_workers=0`.",
                        )
                    if inner != "<lambda>" and isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == inner:
                        text = (
                            f"`{inner}` ({source.place(node)}) is defined inside of `{outer}`. {how}, and pickle "
                            "stores functions and classes by their name in the module, where a local one is "
                            "not found."
                        )
                        return Explanation(text, "Move it to the top level of the module, or use `num_workers=0`.")
        for source in failure.all_sources():
            for node in source.nodes:
                if isinstance(node, ast.Lambda) and ("lambda" in name or "lambda" in failure.message):
                    statement = source.statement_at(node.lineno)
                    text = (
                        f"`{source.code(node)}` ({source.place(node)}) is a lambda. {how}, and pickle stores a "
                        "function by its name, which a lambda lacks."
                    )
                    return (
                        Explanation(
                            text,
                            "Write it as a named function (or a class with `__call__`) at the top level of the "
                            "module; or use `num_workers=0`.",
                        )
                        if statement
                        else None
                    )
        what = (
            f"A lambda inside of `{outer}`"
            if inner == "<lambda>"
            else f"`{inner}`, which is defined inside of `{outer}`,"
            if outer
            else f"`{name}`"
        )
        return (
            Explanation(
                f"{what} cannot be pickled. {how}, and pickle stores functions and classes by their name at the top "
                "level of a module.",
                "Move it to the top level of the module as a named function or class, or use `num_workers=0`.",
            )
            if name
            else None
        )
    kind = str(fact.type or "")
    opened = {
        "h5py": "an open HDF5 file",
        "_io.TextIOWrapper": "an open file",
        "_io.BufferedReader": "an open file",
        "_thread.lock": "a lock (of a logger, a queue, a database or a client)",
        "generator": "a generator",
        "sqlite3.Connection": "an open database",
        "module": "a module",
    }
    what = opened.get(kind, f"an object of the type {kind}")
    for source in failure.all_sources():
        for call in source.calls("File", "open", "Environment", "connect", "Lock", "Session", "Client"):
            statement = source.statement_at(call.lineno)
            if isinstance(statement, ast.Assign) and dotted(statement.targets[0]).startswith("self."):
                return Explanation(
                    f"`{source.code(statement)}` ({source.place(statement)}) keeps {what} in the object. {how}, and "
                    "it cannot be sent to another process.",
                    "Open it in each worker at the first access: keep the path in `__init__`, and open in "
                    "`__getitem__` if it is not open yet.",
                )
    return Explanation(
        f"The data set holds {what}. {how}, and it cannot be sent to another process.",
        "Open it in each worker at the first access (in `__getitem__`), and keep only the path in `__init__`; or "
        "use `num_workers=0`.",
    )


@explains("main_guard", "worker_exit")
def no_main_guard(fact: Fact, failure: Failure) -> Explanation | None:
    """A script that starts processes at import."""
    frame = next((f for f in failure.own_frames if f.function == "<module>"), failure.frame)
    source = failure.source(frame)
    spawns = [
        (s, n)
        for s in failure.all_sources()
        for n in s.nodes
        if isinstance(n, ast.Constant) and n.value in ("spawn", "forkserver")
    ]
    if failure.cells or frame is None or (fact.kind == "worker_exit" and not (spawns and source is not None)):
        return None
    if source is not None and any(
        isinstance(n, ast.If) and "__name__" in source.code(n.test) for n in source.tree.body
    ):
        return None
    how = f" (`{spawns[0][0].line(spawns[0][1].lineno).strip()}`, {spawns[0][0].place(spawns[0][1])})" if spawns else ""
    where = f"`{frame.code}` ({frame.place})" if frame.code else "A line"
    return Explanation(
        f"{where} starts worker processes at the top level of the script. With the spawn start method{how} each worker "
        "imports the script again, reaches the same line and would start workers itself, so it ends at once.",
        'Put what the script does into a function and call it under `if __name__ == "__main__":` (`main()`); functions '
        "and classes stay above it. Without the guard only `num_workers=0`, or the start method fork on Linux, works.",
    )


@explains("closed")
def used_after_its_with_block(fact: Fact, failure: Failure) -> Explanation | None:
    """A file or archive that is kept beyond the `with` block that closes it."""
    frame = failure.frame
    place = failing_expression(failure, frame, ast.Subscript, ast.Call, ast.For, ast.Attribute, ast.comprehension)
    if place is None or frame is None:
        return None
    source = place[0]
    statement = source.statement_at(frame.line) if failure.source(frame) is source else None
    code = frame.expression or frame.code
    names = {dotted(n) for n in ast.walk(statement or source.tree) if isinstance(n, ast.Name | ast.Attribute)}
    for other in failure.all_sources():
        for block in (n for n in other.nodes if isinstance(n, ast.With)):
            for item in (i for i in block.items if isinstance(i.optional_vars, ast.Name)):
                variable = str(getattr(item.optional_vars, "id", ""))
                assigned = [n for n in ast.walk(block) if isinstance(n, ast.Assign) and _keeps(n.value, variable)]
                targets = [(dotted(n.targets[0]), n) for n in assigned if dotted(n.targets[0]) in names]
                if variable in names and other is source and frame.line > (block.end_lineno or 0):
                    targets.append((variable, None))  # type: ignore[arg-type]
                if not targets or (other is source and block.lineno <= frame.line <= (block.end_lineno or 0)):
                    continue
                name, node = targets[0]
                opened = other.code(item.context_expr)
                stored = f" `{other.code(node)}` ({other.place(node)}) keeps it, but" if node is not None else ""
                return Explanation(
                    f"`{code}` ({frame.place}) reads from `{name}`, which is closed:{stored} `with {opened}` "
                    f"({other.place(block)}) closes it at the end of its block, so only what was read inside is left.",
                    f"Read what is needed inside of the block, as an array or a list "
                    f"(`{_inside(place[1], variable)}`), or open it without `with` and keep it open: `{name} = "
                    f"{opened}` (with data workers: in `__getitem__`, at the first access).",
                )
    return None


def _inside(node: ast.AST, variable: str) -> str:
    """Return the line that reads a part of an open file for later."""
    key = constant(node.slice) if isinstance(node, ast.Subscript) else None
    named = isinstance(key, str) and key.isidentifier()
    return f"self.{key} = {variable}[{key!r}][:]" if named else f"data = list({variable})"


def _keeps(value: ast.expr, name: str) -> bool:
    """Whether an expression is a file itself, or an iterator or view that reads from it later."""
    if isinstance(value, ast.Call) and last_name(value.func) in (
        "reader",
        "DictReader",
        "map",
        "filter",
        "iter",
        "enumerate",
    ):
        return any(dotted(n) == name for n in value.args)
    if isinstance(value, ast.GeneratorExp):
        return dotted(value.generators[0].iter) == name
    return dotted(value) == name


@explains("invalid_box")
def box_without_area(fact: Fact, failure: Failure) -> Explanation | None:
    """Boxes of a detector that are not two corners: width and height in their place, or corners in another order."""
    numbers = [float(part) for part in str(fact.box).split(",")]
    target = next(
        (
            (s, k, v)
            for s in failure.all_sources()
            for n in s.nodes
            if isinstance(n, ast.Dict)
            for k, v in zip(n.keys, n.values, strict=True)
            if constant(k) == "boxes"
        ),
        None,
    )
    x1, y1, x2, y2 = numbers
    where_from = (
        f" They come from `{target[0].code(target[2])}` ({target[0].place(target[2])})." if target is not None else ""
    )
    text = (
        f"The detector takes a box as two corners, `[x1, y1, x2, y2]` with x2 > x1 and y2 > y1. A box of target "
        f"{fact.position} of the batch is, after the model's resizing, ({', '.join(f'{n:.0f}' for n in numbers)}): "
    )
    if (x2 == x1 or y2 == y1) and x2 >= x1 and y2 >= y1:
        return Explanation(
            f"{text}it has no {'width' if x2 == x1 else 'height'}.{where_from}",
            "Leave out boxes without area when the target is made (with their labels), or correct the annotation.",
        )
    after = (
        f"box_convert({target[0].code(target[2])}, 'xywh', 'xyxy')"
        if target is not None
        else "box_convert(boxes, 'xywh', 'xyxy')"
    )
    edit = changed(target[0], target[2], f"torchvision.ops.{after}") if target is not None else None
    words = [f"`{w}`" for w in ("bbox", "COCO", "xywh", "[x, y, w, h]") if target is not None and w in target[0].text]
    sign = f" The program names {listed(words)}, and a COCO box has that form." if words else ""
    return Explanation(
        f"{text}the second corner lies before the first. Boxes of the form [x, y, width, height] (COCO) that are read "
        f"as corners give exactly this.{sign}{where_from}",
        f"Convert them: `torchvision.ops.{after}` (x2 = x + width, y2 = y + height; `import torchvision`). If they are "
        "corners already, their order is wrong: sort each pair. Removing such boxes would hide that the others are "
        "wrong, too.",
        edit,
    )


@explains("key")
def missing_key(fact: Fact, failure: Failure) -> Explanation | None:
    """A key that a dict, a table or a state dict does not have."""
    if failure.type.rpartition(".")[2] != "KeyError":
        return None
    key = failure.message.partition("\n")[0].strip().strip("'\"")
    frame, source = failure.frame, failure.source(failure.frame)
    if frame is None:
        return None
    place = failing_expression(failure, frame, ast.Subscript)
    name = place[0].code(place[1].value) if place and isinstance(place[1], ast.Subscript) else ""
    value = failure.value(name)
    if place is not None and isinstance(place[1], ast.Subscript):
        weights = state_dict_without_entry(failure, place[0], place[1], key)
        if weights is not None:
            return weights
    table = value if value is not None and value.kind == "table" else failure.value(name.split("[")[0].split(".loc")[0])
    numeric = key.lstrip("-").isdigit()
    in_pandas = any("pandas" in f.file for f in failure.frames)
    code = place[0].code(place[1]) if place else frame.code
    if in_pandas and numeric:
        text = f"`{code}` ({frame.place}) looks for the row labelled {key}, and the table has no such label"
        index = table.index if table is not None and isinstance(table.facts.get("index"), dict) else None
        text += (
            f" (its {table.shape[0]} rows are labelled {index['first']} to {index['last']})."
            if index and table and table.shape
            else "."
        )
        filtered = _filtered(failure, name)
        text += (
            f" `{filtered}` has removed rows and kept the labels of the others."
            if filtered
            else " A filter, a split or a `dropna` removes rows and keeps the labels of the others."
        )
        before = place[0].code(place[1]) if place else ""
        return Explanation(
            text,
            "Take rows by position: `.iloc[i]`, or renumber them once: `df = df.reset_index(drop=True)`.",
            _iloc(failure, source, frame, before),
        )
    keys = list(value.keys or []) if value is not None and value.kind == "container" else []
    keys = list(table.columns or []) if not keys and table is not None and table.kind == "table" else keys
    near = [k for k in keys if k.strip().lower() == key.strip().lower()] or [k for k in keys if _same_words(key, k)]
    longer = [k for k in keys if key and (key in k or k in key)] if not near else []
    if not name or not keys:
        return None
    text = (
        f"`{name}` ({frame.place}) has no "
        f"{'column' if table is not None and table.kind == 'table' else 'key'} "
        f"{key!r}. It has {listed([repr(k) for k in keys], 8)}."
    )
    if near:
        return Explanation(text, f"Use {near[0]!r}.", replaced(source, frame.line, key, near[0]))
    if len(longer) == 1:
        return Explanation(text, f"If that is what is meant, use {longer[0]!r}; else add it where the others are set.")
    return Explanation(text, "Use one of these, or look at where it should have been added.")


def _same_words(key: str, other: str) -> bool:
    """Return whether two keys differ by a typing error: part by part, or by the characters between the parts."""
    parts = [text.lower().replace(".", "_").replace("-", "_").replace(" ", "_").split("_") for text in (key, other)]
    if len(parts[0]) != len(parts[1]):
        return "".join(parts[0]) == "".join(parts[1])
    likeness = [difflib.SequenceMatcher(None, a, b).ratio() for a, b in zip(*parts, strict=True)]
    return min(likeness) >= 0.7


def _iloc(failure: Failure, source: Source | None, frame: Frame, code: str) -> Edit | None:
    return replaced(source, frame.line, ".loc[", ".iloc[") if ".loc[" in code else None


def _filtered(failure: Failure, name: str) -> str:
    """Return the statement that filtered a table."""
    for source in failure.all_sources():
        for node in source.nodes:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and last_name(node.value.func) in ("dropna", "query", "sample", "drop_duplicates", "train_test_split")
            ):
                return source.code(node)
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Subscript)
                and isinstance(node.value.slice, ast.Compare)
            ):
                return source.code(node)
    return ""


def _batches(loader: Value | None) -> int | None:
    """Return how many batches a loader gives in an epoch."""
    from ocrlab.debug.diagnosis.explanations.batch_shapes import dataset_length

    length = dataset_length(loader) if loader is not None and loader.kind == "loader" else None
    size = loader.batch_size if loader is not None else None
    if length is None or not size:
        return None
    return int(length // size) if loader is not None and loader.drop_last else int(-(-length // size))


@explains("used_up", general=True)
def iterator_at_its_end(fact: Fact, failure: Failure) -> Explanation | None:
    """`next()` on an iterator that has given everything."""
    frame = failure.frame
    place = failing_call(failure, frame, "next")
    if place is None or frame is None or len(place[1].args) != 1:
        return None
    source, node = place[0], place[1].args[0]
    name = source.code(node)
    definition = origin(failure, source, node, frame)
    call = definition.node if isinstance(definition.node, ast.Call) else None
    text = f"`{name}` has come to its end ({frame.place})"
    if call is not None and last_name(call.func) == "iter" and call.args:
        container = definition.source.code(call.args[0])
        loader = failure.value(container, definition.frame) or failure.value(container)
        batches, outer = _batches(loader), source.enclosing(frame.line, ast.For)
        if call is node:
            return Explanation(
                f"`{container}` gives nothing ({frame.place}): it is empty.",
                "Look at what fills it: the folder, the filter, the split, or `drop_last=True` with too few samples.",
            )
        text += (
            f": `{container}` has only {count(batches, 'batch', 'batches')}"
            if batches
            else f": `{container}` is shorter"
        )
        around = ""
        if isinstance(outer, ast.For):
            inner = outer.iter
            while isinstance(inner, ast.Call) and inner.args and last_name(inner.func) in ("enumerate", "tqdm"):
                inner = inner.args[0]
            around = source.code(inner)
            number = _batches(failure.value(around))
            steps = f" ({count(number, 'batch', 'batches')})" if number else ""
            text += f", and the loop over `{around}`{steps}, {source.place(outer)}, takes one in each step"
        zipped = (
            f"; or loop over `zip({around}, itertools.cycle({container}))`" if around and "range" not in around else ""
        )
        return Explanation(
            f"{text}.",
            f"Start it again when it ends: `except StopIteration: {name} = iter({container})` and take the next one"
            f"{zipped}.",
        )
    code = f" (`{definition.code}`, {definition.place})" if definition.node is not node else ""
    return Explanation(
        f"{text}{code}: an iterator or a generator gives its values once, and all of them were taken.",
        f"Make it anew before it is read again, keep the values in a list (`list({name})`), or give a default: "
        f"`next({name}, None)`.",
    )


@explains("worker_exit")
def class_of_the_notebook(fact: Fact, failure: Failure) -> Explanation | None:
    """A worker that was spawned and does not find the data set's class, which only the notebook defines."""
    cell = next((c for c in reversed(failure.cells) if c.failed), None)
    lost = next((f for f in facts("", cell.output) if f.kind == "weights_only" and f.module), None) if cell else None
    if lost is None:
        return None
    name = str(lost.object)
    definer = next((c for c in failure.cells if [*c.source.classes(name), *c.source.functions(name)]), None)
    where = f"in this notebook (cell {definer.number})" if definer is not None else "in this program"
    return Explanation(
        f"A spawned worker is a new Python process, which imports classes and functions by name; `{name}` is defined "
        f"{where} only, and the worker's `__main__` does not have it.",
        f"Put `{name}` into a file of its own (a .py module) and import it in the notebook, or use `num_workers=0`; on "
        "Linux the start method fork works: leave `spawn` out.",
    )
