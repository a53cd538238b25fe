"""Samplers that do not belong to the data set of their loader: class weights, positions of another data set."""

from __future__ import annotations

import ast

from ocrlab.debug.diagnosis.explanations.batch_shapes import dataset_length
from ocrlab.debug.diagnosis.explanations.explanation import ANY, Explanation, explains
from ocrlab.debug.diagnosis.explanations.failure import Failure, Value
from ocrlab.debug.diagnosis.explanations.messages import Fact
from ocrlab.debug.diagnosis.explanations.origins import origin
from ocrlab.debug.diagnosis.explanations.source import argument, dotted, last_name, parameters

DEFAULTS = ("SequentialSampler", "RandomSampler", "NoneType")
COUNTERS = ("bincount", "Counter", "unique", "value_counts", "histogram")


def size_of(value: Value | None, name: str) -> int | None:
    """Return the length of an attribute of an object, or its value where it is a number."""
    item = ((value.attributes if value is not None else None) or {}).get(name) or {}
    text = str(item.get("text", ""))
    length = item.get("length") if item.get("length") is not None else (item.get("shape") or [None])[0]
    return int(text) if text.isdigit() else length


def loaders(failure: Failure) -> list[Value]:
    """Return the loaders whose values are known, innermost frame first."""
    return [value for _, value in failure.values(library=False) if value.kind == "loader"]


@explains("weighted_sampler")
def class_weights_for_samples(fact: Fact, failure: Failure) -> Explanation | None:
    """A WeightedRandomSampler that gets a weight for each class in place of one for each sample."""
    places = [(s, c) for s in failure.all_sources() for c in s.calls("WeightedRandomSampler")]
    if len(places) != 1:
        return None
    source, call = places[0]
    sampler = next((v for _, v in failure.values(library=True) if v.type == "WeightedRandomSampler"), None)
    size, samples_asked = size_of(sampler, "weights"), size_of(sampler, "num_samples")
    weights = argument(call, 0, "weights")
    samples = next((n for loader in loaders(failure) if (n := dataset_length(loader)) is not None), None)
    code, text = source.code(weights), f"`{source.code(call)}` ({source.place(call)})"
    if weights is None:
        return None
    if size is None or samples_asked is None:
        text += f" draws more samples without putting any back than `{code}` has weights."
    else:
        text += f" shall draw {samples_asked} samples without putting any back, and `{code}` has only {size} weights."
    if samples is not None and size == samples:
        return Explanation(
            f"{text} There is a weight for each of the {samples} samples, so each can be drawn once.",
            f"Set `replacement=True` (rare samples are then drawn several times), or draw at most {samples}.",
        )
    where, labels = origin(failure, source, weights, None), ""
    for _ in range(4):
        names = [n for n in ast.walk(where.node) if isinstance(n, ast.Name)]
        counter = next(
            (n for n in ast.walk(where.node) if isinstance(n, ast.Call) and last_name(n.func) in COUNTERS), None
        )
        if counter is not None:
            labels = dotted(counter.args[0]) if counter.args else dotted(getattr(counter.func, "value", None))
            break
        options = [o for n in names if (o := origin(failure, where.source, n, where.frame)).node is not n]
        if not options:
            break
        where = options[0]
    each = f"one for each of the {samples} samples" if samples is not None else "one for each sample"
    text += (
        f" The sampler needs a weight per sample, {each}; these look like one per class"
        if size is None or (size < 1000)
        else f" The sampler needs a weight per sample, {each}"
    )
    text += f": they are counted from `{labels}` ({where.place})." if labels else "."
    after = f"{code}[{labels or 'labels'}]"
    return Explanation(
        text,
        f"Give every sample the weight of its class: `{last_name(call.func)}({after}, num_samples="
        f"len({labels or 'labels'}), replacement=True)` (the labels as whole numbers).",
    )


@explains(ANY)  # before the general words on an index
def sampler_of_another_data_set(_: Fact, failure: Failure) -> Explanation | None:
    """A sampler that draws positions which the data set of its loader does not have."""
    loader = next((v for v in loaders(failure) if (v.sampler or {}).get("type") not in (None, *DEFAULTS)), None)
    length = dataset_length(loader) if loader is not None else None
    asked = _asked(failure)
    if failure.type != "IndexError" or loader is None or length is None or asked is None or asked < length:
        return None
    calls = [(s, c) for s in failure.all_sources() for c in s.calls("DataLoader") if argument(c, 3, "sampler")]
    options = [(s, c, option) for s, c in calls if (option := argument(c, 3, "sampler")) is not None]
    sampler = Value("", loader.sampler)
    positions = next((n for name in ("weights", "indices", "num_samples") if (n := size_of(sampler, name))), None)
    if len(options) != 1:
        chosen, dataset, where = f"The sampler of `{loader.name}`", "", ""
    else:
        source, call, option = options[0]
        chosen, dataset = f"`sampler={source.code(option)}`", source.code(argument(call, 0, "dataset"))
        where = f" ({source.place(call)})"
        built = origin(failure, source, option, None)
        if built.node is not option:
            chosen += f" (`{built.code}`, {built.place})"
    having = f", with {positions} positions" if positions and positions > length else ""
    part = (loader.facts.get("dataset") or {}).get("type") == "Subset"
    labels = f"`labels[{dataset}.indices]`" if dataset.isidentifier() else "the labels at its `indices`"
    return Explanation(
        f"{chosen}{where} was built for another data set{having}: it asked for sample {asked}, and the loader reads "
        f"{f'`{dataset}`' if dataset else 'a data set'}, which has only {length} samples, 0 to {length - 1}.",
        "Build the sampler from the data set that the loader reads: its weights, labels or indices for these "
        f"{length} samples only"
        + (
            f". It is a `Subset`, which numbers its samples anew from 0: take {labels}, or give the loader the whole "
            "data set and a `SubsetRandomSampler` of the indices."
            if part
            else "."
        ),
    )


def _asked(failure: Failure) -> int | None:
    """Return the index that a data set was asked for."""
    for frame in reversed(failure.frames):
        source = failure.source(frame)
        if frame.function == "__getitem__" and source is not None:
            function = source.function_at(frame.line)
            names = parameters(function)[1:2] if function is not None else []
        else:
            names = (
                ["idx"] if frame.is_library and frame.file.replace("\\", "/").endswith("utils/data/dataset.py") else []
            )
        number = next((frame.values[n].number for n in names if n in frame.values), None)
        if isinstance(number, int):
            return number
    return None
