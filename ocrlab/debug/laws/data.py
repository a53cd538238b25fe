"""Law 10: batches are whole, items stay as they are, labels survive transforms, and sets are disjoint."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.data import IterableDataset, default_collate

from ocrlab.debug.instruments.sample_names import batch_names
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, NotTestable, clock, generator_state, set_generator_state
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.observation import Observation
from ocrlab.debug.laws.result import Result, broken, hint, holds
from ocrlab.debug.laws.tensor_checks import (
    ROWS,
    is_attention_mask,
    is_readable,
    not_finite,
    position_text,
    rows_equal,
    value_at,
)

ITEMS, MOST_ITEMS = 8, 20_000
TRANSITION = 4  # tensors in a batch of moments: observation, action, reward, next observation
SECONDS = 5.0  # for the content of each set
MOST_RUNS, MOST_ROWS = 60_000, 2000  # parts of windows, and items, that are compared
SHARED = 0.2  # of the validation windows: where the split is by time, some at the border share steps
SIDE, CLASSES, MOST_VALUES = 16, 32, 1 << 16  # pixels of a picture, values of a mask, values that are counted
TURNED = 0.15  # share of the samples that belong together, and twice that of those that do only when one is turned
TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "from left to right": lambda t: t.flip(-1),
    "upside down": lambda t: t.flip(-2),
    "by half a turn": lambda t: t.flip(-1, -2),
    "by a quarter turn": lambda t: t.rot90(1, (-2, -1)),
    "by a quarter turn back": lambda t: t.rot90(-1, (-2, -1)),
}
DRAWN_AGAIN = ("weight", "balanc", "replac", "class", "label", "boot", "hard", "priorit")  # names of samplers
AVERAGING = ("bilinear", "bicubic", "linear", "area", "trilinear")


def observe(step: Observation) -> Iterator[Result]:
    """Yield values of the batch that are not finite, and masks of which some are not turned as their pictures are."""
    named = list(dotted_tensors(step.batch))
    names = batch_names(step.batch)
    for name, tensor in named:
        wrong = not_finite(tensor)
        if wrong is not None and not ("mask" in name.lower() and is_attention_mask(tensor)):
            where = f"batch.{name}, {position_text(wrong, names)}"
            do = "Look at this sample's file, and at divisions and logarithms where it is made"
            yield broken("batch.finite", where, value_at(tensor, wrong), "finite", do)
    yield from _turned(named)


def _turned(named: Sequence[tuple[str, Tensor]]) -> Iterator[Result]:
    """Report masks (N, H, W) of which some correlate with their picture (N, C, H, W), others with its mirror image."""
    large = [(n, t.detach()) for n, t in named if t.ndim in (3, 4) and is_readable(t) and min(t.shape[-2:]) >= SIDE]
    values = {n: t[:8].flatten()[:: (t[:8].numel() // MOST_VALUES) | 1].unique().numel() for n, t in large}
    for (n, image), (other, mask) in itertools.permutations(large, 2):
        flat = mask[:, 0] if mask.ndim == 4 and mask.shape[1] == 1 else mask
        fits = image.ndim == 4 and len(image) >= 8 and flat.shape == (len(image), *image.shape[2:])
        if not fits or values[other] > CLASSES or values[n] <= CLASSES:
            continue  # two views of a picture may well be turned apart
        step = max(1, min(flat.shape[-2:]) // 64)
        masks, pictures = (t[:64, ..., ::step, ::step].float() for t in (flat, image))
        for picture, (words, turn) in itertools.product(pictures[:, :3].unbind(1), TURNS.items()):
            if "quarter" in words and picture.shape[-1] != picture.shape[-2]:
                continue
            own, turned = (_correlation(p.flatten(1), masks.flatten(1)).abs() for p in (picture, turn(picture)))
            strays = (turned > 0.5) & (own < 0.2)
            if float(strays.float().mean()) > TURNED / 2 and float((own > 0.5).float().mean()) > TURNED:
                got = f"of {len(own)} masks {int((own > 0.5).sum())} belong to their picture, {int(strays.sum())} only"
                got += f" when it is turned {words} (sample {int(strays.to(torch.uint8).argmax())})"
                do = "Draw the random flip or rotation once, and do it to both"
                yield broken("targets.flipped", f"batch.{other}", got, "masks that lie as their pictures do", do)
                return


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of each row of `a` with that of `b`, 0 where one of them does not vary."""
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp(min=1e-30)


def test(step: Experiment, extras: Extras) -> Iterator[Result]:
    """Look at the batch, read some items twice, watch their transforms, and compare both sets."""
    parts = [_labels(step), _ends(step), _extras(step), _equal_parts(step)]
    if extras.loader is not None:
        parts += [_batch_size(step, extras), _items(step, extras.loader), _epoch(step, extras.loader)]
        parts += [_both_sets(step, extras)] if extras.val_loader is not None else []
    is_broken = False
    for result in itertools.chain(*parts):
        is_broken = True
        yield result
    if is_broken:
        return
    if extras.loader is None:
        raise NotTestable("give `loader`, and `val_loader` to compare both sets")
    yield holds("batches, items and transforms" + (" and both sets" if extras.val_loader is not None else ""))


def may_have_made(step: Experiment, loader: Any) -> bool:
    """Return whether items of a loader have the shapes of the samples in the batch; of own collating the size tells."""
    if loader.collate_fn is default_collate and not isinstance(loader.dataset, IterableDataset):
        with contextlib.suppress(NotTestable), _undone(step, loader.dataset):
            item = default_collate([loader.dataset[0]])
            shapes = [[t.shape[1:] for _, t in dotted_tensors(part)] for part in (item, step.batch)]
            return shapes[0] == shapes[1]
    return bool(loader.batch_size == step.rows)


def _batch_size(step: Experiment, extras: Extras) -> Iterator[Result]:
    """Report samples that were dropped; a loader that was looked up may belong to another batch."""
    wrong = batch_size_broken(extras.loader, step.batch) if extras.loader_given else None
    yield from (wrong,) if wrong else ()


def batch_size_broken(loader: Any, batch: Any) -> Result | None:
    """Return that a batch holds fewer samples than its loader collates, else None.

    No dimension of any tensor is the size that was asked for, and a tensor that no packing explains has fewer rows.
    """
    size = getattr(loader, "batch_size", None) or 0
    try:
        full = size > 1 and len(loader.dataset) >= size
    except (TypeError, AttributeError):
        full = False
    tensors = [t for _, t in dotted_tensors(batch) if t.ndim]
    if not full or not tensors or any(n in (size, size + 1) for t in tensors for n in t.shape):
        return None
    rows = {t.shape[0] for t in tensors if t.ndim >= 3 and t.is_floating_point()}
    if len(rows) != 1 or min(rows) >= size or size % min(rows) or any(t.shape[0] not in rows for t in tensors):
        return None
    return broken(
        "data.batch_size",
        "collate_fn",
        f"a batch has {min(rows)} sample{'s' * (min(rows) > 1)}, and the loader draws {size} for it: the others are"
        " dropped",
        f"a batch size of {size}",
        "Compare len(examples) with the first dimension of what collate_fn returns",
        "a processor or collate_fn returns the first sample only (lists of images inside of one list)",
    )


def _labels(step: Experiment) -> Iterator[Result]:
    """Report samples without a single label that counts; a short one, filled up, may have drawn no token to mask."""
    named = dict(dotted_tensors(step.batch))
    for name, t in named.items():
        if t.ndim >= 2 and t.dtype == torch.int64 and bool((t == -100).any()):
            empty = (t == -100).flatten(1).all(1)
            for mask in (m for n, m in named.items() if t.ndim == 2 and "mask" in n.lower() and m.shape == t.shape):
                empty &= mask[:, -1] != 0
            if int(empty.sum()) >= max(2, 0.1 * len(t)):
                got = f"{int(empty.sum())} of {len(t)} samples have no label that counts, only -100"
                do = "Cut from the left, raise the maximum length, or drop these samples"
                causes = (
                    "prompts are cut to the maximum length, and nothing of the answer is left",
                    "masks are inverted",
                )
                yield broken("data.labels", f"batch.{name}", got, "a label for each sample", do, *causes)


def _ends(step: Experiment) -> Iterator[Result]:
    """Report texts whose last real token never counts; labels that are shifted already have none there."""
    named = {n: t for n, t in dotted_tensors(step.batch) if t.ndim == 2 and len(t) >= 4 and not t.is_floating_point()}
    for name, labels in named.items():
        counted = labels != -100
        same = [n for n, t in named.items() if t is not labels and t.shape == labels.shape]
        own = any(bool((named[n] == labels)[counted].all()) for n in same)  # the tokens at the same places
        for mask in (named[n].bool() for n in same if "mask" in n and own and not bool(counted.all())):
            last = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
            ends = labels.gather(1, last[:, None])[:, 0]
            padded = ~mask[:, -1] & counted.any(1)
            if int(padded.sum()) >= 3 and bool((ends[padded] == -100).all()):
                yield broken(
                    "data.ends",
                    f"batch.{name}",
                    f"the last token of a text has no label, only -100, in each of {int(padded.sum())} samples that"
                    " are filled up: the end of a text is never learned, and generation does not stop",
                    "a label for the token that ends a text",
                    "Mask labels where attention_mask is 0, or use a padding token of its own",
                    "the padding token is the end token (pad_token = eos_token), and labels are masked by it",
                )
                return


def _extras(step: Experiment) -> Iterator[Result]:
    """Report a scalar target that is copied verbatim into the inputs of its sample."""
    n, named = step.rows, [(name, t) for name, t in dotted_tensors(step.batch) if t.ndim]
    for name, target in named if n >= 4 else ():
        wanted = target.flatten().double()
        if target.numel() != n or float(wanted.unique(return_counts=True)[1].max()) / n > 0.7:
            continue
        for other, t in named:
            columns = t.reshape(n, -1) if t is not target and len(t) == n and t.numel() > n else None
            if columns is None or columns.shape[1] > 1 << 16 or columns.is_complex():
                continue
            equal = (columns.double() == wanted[:, None]).all(0)
            if bool(equal.any()) and len(wanted.unique()) ** n > 1e6 * columns.shape[1]:
                got = (
                    f"value {int(equal.to(torch.uint8).argmax())} of batch.{other} is batch.{name} in each of {n}"
                    " samples, to the last bit"
                )
                do = "Take it out of the input"
                causes = ("the column of the label is left in the features", "a window that holds what comes next")
                yield broken("target.given", f"batch.{other}", got, "an input without the target", do, *causes)
                return


def _equal_parts(step: Experiment) -> Iterator[Result]:
    """Report two views of each sample that are the same, or two parts of a transition."""
    named = [(name, t) for name, t in dotted_tensors(step.batch) if t.ndim > 1 and len(t) == step.rows >= ROWS]
    named = [(name, t) for name, t in named if t.is_floating_point() and is_readable(t) and not bool(rows_equal(t))]
    pairs = [(a, b) for (a, x), (b, y) in itertools.combinations(named, 2) if x.shape == y.shape and torch.equal(x, y)]
    if not pairs:
        return
    first, second = pairs[0]
    got = f"batch.{first} and batch.{second} are the same in each of {step.rows} samples"
    run, view = step.run(training=True), dict(named)[first]
    reads = sum(t.shape == view.shape and torch.equal(t, view) for call in run.inputs for t in call)
    outputs = run.outputs if reads > 1 else []
    if any(a.shape == b.shape and torch.equal(a, b) for a, b in itertools.combinations(outputs, 2)):
        do = "Draw another augmentation for each view; do not seed the generator with the index of the sample"
        yield broken(
            "data.views",
            "the data set",
            f"{got}, and so are the outputs for them: views that do not differ teach no invariance",
            "views that differ",
            do,
            "the augmentation seeds its generator with the index of the sample",
            "one augmented copy is used twice",
        )
    elif sum(1 for _ in dotted_tensors(step.batch)) >= TRANSITION:
        do = "Store copies: observation.copy()"
        yield hint(
            "data.equal_parts",
            "the data set",
            got,
            "values of two moments",
            do,
            "an environment changes its own array in place, and the buffer stores references to it",
        )


class InterpolationWatch(TorchFunctionMode):
    """While it is entered, whole numbers that were resized by averaging are noted, by the shape that they got."""

    def __init__(self) -> None:
        super().__init__()
        self.blurred: dict[tuple[int, ...], tuple[str, int, int]] = {}  # mode, values between two classes, all

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is functional.interpolate:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                mode = (kwargs or {}).get("mode", args[3] if len(args) > 3 else "nearest")
                before, after = (t.detach() for t in (args[0], result))
                classes = before.unique().numel() if bool((before == before.round()).all()) else 0
                between = int((after != after.round()).sum())
                if mode in AVERAGING and 2 < classes <= 64 and between:
                    self.blurred[tuple(after.shape[-2:])] = mode, between, after.numel()
        return result

    def result(self, item: Sequence[Tensor]) -> Result | None:
        """Return that a label map of an item was resized by averaging its classes and rounded, else None."""
        for t in item:
            if tuple(t.shape[-2:]) in self.blurred and not t.is_floating_point():
                mode, between, count = self.blurred[tuple(t.shape[-2:])]
                return broken(
                    "data.interpolated",
                    "the transform of the data set",
                    f"a mask of classes is resized with {mode} interpolation and rounded: {between} of {count} pixels"
                    " lie between two classes, so that borders get a label that neither side has",
                    "the labels that were there",
                    'Resize masks and other labels with mode="nearest"',
                    f"one resize for images and masks, with mode={mode!r}",
                )
        return None


def _items(step: Experiment, loader: Any) -> Iterator[Result]:
    """Read some items twice with the same random numbers; the attributes of the data set are put back."""
    dataset = getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return
    watch, first = InterpolationWatch(), list[Tensor]()
    views = list[list[list[Tensor]]]()
    with _undone(step, dataset) as attributes:
        states = {name: text for name, v in attributes.items() if (text := _state_text(v)) != "None"}
        used_generators = set[str]()
        for index in range(min(ITEMS, len(dataset))):
            reads = []
            for number in range(
                3
            ):  # the second time with other random numbers: what it draws may be put into the sample
                step.state.restore_random()
                if number == 1:
                    torch.rand(17 + index), np.random.rand(1 + index), [random.random() for _ in range(1 + index)]  # noqa: NPY002
                with watch:
                    item = dataset[index]
                reads.append([t.detach().clone() for t in _tensors(item)])
            views.append(reads[:2])
            first, _, second = reads
            changed = len(first) == len(second) and any(
                a.shape != b.shape or not bool(((a == b) | (a != a)).all()) for a, b in zip(first, second, strict=True)
            )
            used_generators |= {name for name, before in states.items() if _state_text(attributes[name]) != before}
            if changed and not used_generators:
                got = f"item {index} is another one when it is read again, with the same random numbers"
                do = "Write x = x - mean in place of x -= mean, or clone the sample first"
                causes = (
                    "__getitem__ writes into the stored sample (x -= mean, x[mask] = 0, an in-place transform)",
                    "it counts its calls",
                )
                yield broken("data.item", "the data set", got, "the same item each time", do, *causes)
                break
    yield from copied_generator(loader) if used_generators else ()
    yield from flipped_without_boxes(views)
    blurred = watch.result(first)
    if blurred:
        yield blurred


def flipped_without_boxes(views: Sequence[Sequence[list[Tensor]]]) -> Iterator[Result]:
    """Report a picture that was turned over between two reads of an item, while its boxes or points are the same."""
    for index, (first, other) in enumerate(views):
        for a, b in zip(first, other, strict=False):
            if a.ndim != 3 or a.shape != b.shape or min(a.shape[-2:]) < SIDE or torch.equal(a, b):
                continue
            turned = next((words for words, turn in TURNS.items() if torch.equal(turn(a), b)), "")
            for p, q in zip(first, other, strict=False):
                coordinates = p.is_floating_point() and p.ndim in (1, 2) and _are_coordinates(p, max(a.shape[-2:]))
                if turned and coordinates and torch.equal(p, q) and p.unique().numel() > 2:
                    got = f"item {index} was read twice: its picture was flipped {turned}, its boxes or points were not"
                    do = "Flip the boxes with the picture: x becomes width - x, and left and right change places"
                    causes = ("the picture is flipped on its own, in another transform than its targets",)
                    yield broken(
                        "targets.flipped", "the data set", got, "targets that move with the picture", do, *causes
                    )
                    return


def _are_coordinates(values: Tensor, side: int) -> bool:
    """Return whether numbers can be boxes (left, top, right, bottom) or several points in pixels of a picture."""
    if values.numel() < 4 or not 0 <= float(values.min()) <= float(values.max()) <= side:
        return False
    boxes = values.shape[-1] == 4 and bool((values[..., 2:] > values[..., :2]).all())
    shares = values.ndim == 1 and abs(float(values.sum()) - 1) < 1e-3  # of classes
    return (boxes and not shares) or (values.shape[-1] == 2 and values.ndim == 2 and float(values.max()) > 1.5)


def _epoch(step: Experiment, loader: Any) -> Iterator[Result]:
    """Iterate a custom sampler that is as long as the data set, and count how often it draws each sample."""
    sampler: Any = getattr(loader, "sampler", None)
    size = length_of(getattr(loader, "dataset", None))
    words = " ".join((type(sampler).__name__, *getattr(sampler, "__dict__", ()))).lower()
    meant = type(sampler).__module__.startswith("torch.") or any(word in words for word in DRAWN_AGAIN)
    if meant or not 8 <= size <= MOST_ITEMS or length_of(sampler) != size:
        return
    with _undone(step, sampler):
        draws = Counter(int(index) for index in itertools.islice(iter(sampler), size))
    if len(draws) < 0.95 * size and max(draws.values()) > 1:
        got = f"of {size} samples {size - len(draws)} are not drawn in an epoch, and others up to {max(draws.values())}"
        do = "Draw a permutation: torch.randperm(n), or shuffle=True"
        causes = ("indices are drawn with replacement (torch.randint)", "ranks or workers take the wrong parts")
        yield broken("data.epoch", type(sampler).__name__, f"{got} times", "each sample once in an epoch", do, *causes)


def length_of(sized: Any) -> int:
    """Return the length of a loader or data set, 0 for none."""
    try:
        return len(sized)
    except TypeError:
        return 0


def _state_text(generator: Any) -> str:
    state = generator_state(generator)
    return str(state.tolist() if isinstance(state, Tensor) else state)


@contextlib.contextmanager
def _undone(step: Experiment, dataset: Any) -> Iterator[dict[str, Any]]:
    """Restore the attributes of a data set and the random states after the block; NotTestable where an item raises."""
    attributes = dict(vars(dataset)) if hasattr(dataset, "__dict__") else {}
    states = [(value, state) for value in attributes.values() if (state := generator_state(value)) is not None]
    step.restore()
    try:
        yield attributes
    except Exception as error:
        raise NotTestable(f"an item cannot be read alone ({type(error).__name__})") from error
    finally:
        if attributes:
            vars(dataset).update(attributes)
        for generator, state in states:
            set_generator_state(generator, state)
        step.restore()


def _tensors(item: Any) -> list[Tensor]:
    tensors = [t for _, t in dotted_tensors(item)]
    return tensors or [torch.as_tensor(a) for a in _arrays(item)]


def _arrays(item: Any) -> Iterator[Any]:
    values = item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else (item,)
    yield from (v for v in values if isinstance(v, np.ndarray) and v.dtype.kind in "iufb")


def content(item: Any) -> bytes | None:
    """Return a hash of what an item holds, None for nothing that can be compared."""
    digest, count = hashlib.blake2b(digest_size=12), 0
    values = (
        [item] if not isinstance(item, dict | list | tuple) else list(item.values()) if isinstance(item, dict) else item
    )
    for value in values:
        if isinstance(value, Tensor | np.ndarray):
            array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
            digest.update(np.ascontiguousarray(array).tobytes())
            count += array.size
        elif isinstance(value, str | int | float | list | tuple):
            digest.update(repr(value).encode())
            count += len(value) if isinstance(value, str | list | tuple) else 0
    return digest.digest() if count >= 4 else None


@dataclass
class Items:
    """What both sets are compared by: a hash of each item, its first tensor, and its label where that is one number."""

    hashes: list[bytes] = field(default_factory=list)
    inputs: list[NDArray[Any]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)  # of numbers, as the edges of a graph

    @classmethod
    def read(cls, dataset: Any, until: float) -> Items:
        """Return the items of a data set, as many as can be read in time."""
        items = cls()
        readable = not isinstance(dataset, IterableDataset) and hasattr(dataset, "__getitem__")
        for index in range(min(len(dataset), MOST_ITEMS)) if readable else ():
            item = dataset[index]
            if (digest := content(item)) is not None:
                items.hashes.append(digest)
            values = list(item.values()) if isinstance(item, dict) else item if isinstance(item, list | tuple) else []
            numbers = [v for v in values if isinstance(v, int) or (isinstance(v, Tensor) and v.numel() == 1)]
            several = [t for t in _tensors(item) if t.numel() > 1]
            ends = several[0] if [t.shape for t in several] == [(2,)] and not several[0].is_floating_point() else None
            items.pairs += [tuple(ends.tolist())] if ends is not None else []
            arrays = [t.numpy() for t in _tensors(item) if t.numel() >= 4 and t.device.type == "cpu"]
            if arrays and len(numbers) == 1 and float(numbers[0]) == int(numbers[0]):
                items.labels.append(int(numbers[0]))
            items.inputs += arrays[:1]
            if clock() > until:
                break
        return items


def _both_sets(step: Experiment, extras: Extras) -> Iterator[Result]:
    """Compare the items of both sets: their content, parts of their sequences, and what their labels mean."""
    sets, both = [], [getattr(part, "dataset", part) for part in (extras.loader, extras.val_loader)]
    for dataset in both:
        with _undone(step, dataset):
            sets.append(Items.read(dataset, clock() + SECONDS))
    text = overlap(sets[0].hashes, sets[1].hashes) or overlapping_windows(sets[0].inputs, sets[1].inputs)
    text = text or swapped_pairs(sets[0].pairs, sets[1].pairs)
    train_hashes = set(sets[0].hashes)
    # a loader that the caller did not pass and that has no new sample evaluates the training data on purpose
    same = not extras.val_given and all(digest in train_hashes for digest in sets[1].hashes)
    if text and not same:
        do = "Split first, by time or by source, and cut windows, repeat or augment after that"
        causes = (
            "a source is repeated, cut into overlapping windows, or listed in both directions before the split",
            "the split is drawn anew without a seed",
        )
        yield broken("data.leak", "the validation set", text, "samples that are not in the training set", do, *causes)
    meaning = _other_names(*both) or _other_meaning(*sets)
    if meaning:
        yield broken(
            "data.meaning",
            "the labels of the validation set",
            meaning,
            "the same meaning of each label in both sets",
            "Make one mapping from class to number, and use it for both sets",
            "each set numbers the classes that it has by itself (sorted(set(labels)), folders)",
        )


def overlapping_windows(train: Sequence[NDArray[Any]], valid: Sequence[NDArray[Any]]) -> str:
    """Report that many validation sequences (T,) or (T, C) share a quarter with a training sequence; '' if few do."""
    shapes = {a.shape for a in (*train, *valid)}
    if len(shapes) != 1 or len(valid) < 8 or not 1 <= len(shape := shapes.pop()) <= 2 or shape[0] < 8:
        return ""
    run = max(6, shape[0] // 4)
    most = max(8, MOST_RUNS // (shape[0] - run + 1))

    def runs(window: NDArray[Any], step: int) -> set[int]:
        rows = np.ascontiguousarray(window).reshape(len(window), -1)
        parts = (rows[at : at + run] for at in range(0, len(rows) - run + 1, step))
        return {hash(part.tobytes()) for part in parts if len(set(part[:, 0].tolist())) > run // 2}

    # windows that begin alike show that runs come again by themselves: each place of a series begins one window
    begins = Counter(np.ascontiguousarray(window[:run]).tobytes() for window in train[:most])
    if sum(n for n in begins.values() if n > 1) > 0.1 * len(train[:most]):
        return ""
    train_runs = set[int]().union(*(runs(window, 1) for window in train[:most]))
    met = sum(not train_runs.isdisjoint(runs(window, run)) for window in valid[:most])
    count = len(valid[:most])
    if met < SHARED * count:
        return ""
    return f"{met} of {count} validation windows share {run} steps or more with a training window, to the last bit"


def swapped_pairs(train: Sequence[tuple[int, int]], valid: Sequence[tuple[int, int]]) -> str:
    """Report that many validation pairs are in the training set with their ends swapped; '' where chance does it."""
    whole = set(train)
    every, ids = whole | set(valid), len({end for pair in train for end in pair})
    met = sum((b, a) in whole for a, b in valid if a != b)
    if met < max(8, 0.25 * len(valid), 3 * len(valid) * len(whole) / max(1, ids * ids)):
        return ""
    inside = sum((b, a) in whole for a, b in whole) / max(1, len(whole))
    if len(whole) < 0.9 * len(train) or inside < 0.5 * met / len(valid) or len(every) < 2 * ids:
        return ""  # sizes of pictures repeat, edges do not; return matches that are split by time are new facts
    return (
        f"{met} of {len(valid)} validation pairs are also in the training set with their ends swapped, (a, b) as (b, a)"
    )


def _other_names(train: Any, valid: Any) -> str:
    """Return a name that both data sets number otherwise (`class_to_idx`, `classes`), '' for none."""
    for name in (
        vars(train).keys() & vars(valid).keys() if hasattr(train, "__dict__") and hasattr(valid, "__dict__") else ()
    ):
        maps = []
        for value in (vars(train)[name], vars(valid)[name]):
            names = list(value)[:MOST_ITEMS] if isinstance(value, dict | list | tuple) else []
            unique = bool(names) and all(isinstance(n, str) for n in names) and len({*names}) == len(names)
            maps.append((value if isinstance(value, dict) else {n: i for i, n in enumerate(names)}) if unique else {})
        for key in maps[0].keys() & maps[1].keys():
            if isinstance(maps[0][key], int) and isinstance(maps[1][key], int) and maps[0][key] != maps[1][key]:
                return f"`{name}` says {maps[0][key]} for {key!r} in the training set and {maps[1][key]} in the other"
    return ""


def _other_meaning(train: Items, valid: Items) -> str:
    """Return that a linear reading of the training set finds classes of the other set under other numbers."""
    shapes = {a.shape for a in (*train.inputs, *valid.inputs)}
    classes = len({*train.labels})
    whole = all(len(part.labels) == len(part.inputs) for part in (train, valid))
    if len(shapes) != 1 or not whole or not 2 <= classes <= 64 or min(len(train.labels), len(valid.labels)) < 24:
        return ""
    x, y, z, w = _features(train), torch.tensor(train.labels), _features(valid), torch.tensor(valid.labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:MOST_ROWS]
    x, y = x[order], y[order]
    half, highest = len(x) // 2, int(max(y.max(), w.max())) + 1
    mean, spread = x[:half].mean(0), x[:half].std(0) + 1e-6
    x, z = ((t - mean) / spread for t in (x, z))
    if int(min(y.min(), w.min())) < 0 or highest > 1000:
        return ""
    hot = functional.one_hot(y[:half], highest).float()
    ridge = x[:half].T @ x[:half] + 0.1 * half * torch.eye(x.shape[1])
    read = torch.linalg.solve(ridge, x[:half].T @ (hot - hot.mean(0)))
    inside, answers = (x[half:] @ read + hot.mean(0)).argmax(1), (z @ read + hot.mean(0)).argmax(1)
    moved: dict[int, tuple[int, float]] = {}
    for label in w.unique().tolist():
        own = answers[w == label]
        other = int(own.mode().values)
        same = inside[y[half:] == label]
        certain = len(own) >= 5 and len(same) >= 3 and float((same == label).float().mean()) > 0.6
        if certain and float((own == other).float().mean()) > 0.6 and float((own == label).float().mean()) < 0.1:
            moved[label] = other, float((own == other).float().mean())
    others, there = {other for other, _ in moved.values()}, set(w.tolist())
    if not moved or len(others) < len(moved) or any(o in there and o not in moved for o in others):
        return ""  # it does not tell all classes apart there
    texts = [f"label {n} is what the training set calls {o} in {share:.0%}" for n, (o, share) in moved.items()]
    return f"as a linear classifier of the inputs reads them: {'; '.join(texts[:4])}"


def _features(items: Items) -> Tensor:
    """Return numbers (N, F) of the inputs: token counts, or at most 512 mixed values."""
    rows = torch.from_numpy(np.stack(items.inputs[:MOST_ROWS]))
    flat = rows.reshape(len(rows), -1)
    if not flat.is_floating_point() and rows.ndim == 2:
        return functional.one_hot(flat.long() % 512, 512).sum(1).float()
    flat = flat.float()
    if flat.shape[1] > 512:
        generator = torch.Generator().manual_seed(1)
        flat = flat @ torch.randn(flat.shape[1], 512, generator=generator) / flat.shape[1] ** 0.5
    return flat


def copied_generator(loader: Any) -> Iterator[Result]:
    """Yield that a data set brings a random generator of its own to its workers, each of which gets the same."""
    if not getattr(loader, "num_workers", 0) or loader.worker_init_fn is not None:
        return
    kinds = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
    name = next((n for n, v in getattr(loader.dataset, "__dict__", {}).items() if isinstance(v, kinds)), "")
    if name:
        got = f"it has a generator of its own ({name}), and every worker begins with the same copy of it: they draw the"
        got += " same augmentation"
        do = "Seed it in worker_init_fn, or use the global generators of torch and NumPy"
        yield broken("data.workers", "the data set", got, "other random numbers in each worker", do)


def overlap(train: Iterable[Hashable], valid: Iterable[Hashable]) -> str:
    """Report validation items that are also training items; '' where there are none or where chance explains them.

    Where few different items exist, some repeat by chance: training items then repeat among themselves as often, and
    their numbers of copies follow a Poisson distribution. Repeated sources leave a number of copies that many share.
    """
    counts, rows = Counter(train), list(valid)
    total = sum(counts.values())
    met = sum(row in counts for row in rows)
    if not total or not rows or met < max(3, 0.01 * len(rows)):
        return ""
    # chance: how often a training sample repeats among the others, plus four standard errors
    share, own = met / len(rows), (sum(n for n in counts.values() if n > 1) + 1) / (total + 2)
    times = Counter(counts.values())
    repeated = any(times[k] > 2 * times[k - 1] + 5 for k in times if k > 1)
    if (repeated and share < 0.9) or share > own + 4 * (own * (1 - own) / len(rows)) ** 0.5:
        copies = max(times, key=lambda k: times[k] * (k > 1))
        more = f", {times[copies]} of whose samples come {copies} times" if repeated and copies > 1 else ""
        return f"{met} of {len(rows)} validation samples are also in the training set{more}, to the last bit"
    return ""
