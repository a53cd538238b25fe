"""Law 10: batches are whole, items stay as they are, labels survive transforms, and sets are disjoint."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.data import IterableDataset

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, NotTestable, clock
from ocrlab.debug.laws.law import Extras, Result, holds

ITEMS, MOST_ITEMS = 8, 20_000
SECONDS = 5.0  # for the content of both sets
PASSING = frozenset("round round_ floor clamp squeeze unsqueeze reshape view __getitem__".split())


def test(step: Experiment, extras: Extras) -> Iterator[Result]:
    """Look at the batch, read some items twice, watch their transforms, and compare both sets."""
    broken = [*_labels(step), *_ends(step), *_extras(step)]
    if extras.loader is not None:
        wrong = batch_size_broken(extras.loader, step.batch)
        broken += [wrong] if wrong else []
        broken += _items(step, extras.loader)
        if extras.val_loader is not None:
            broken += _shared(step, extras.loader, extras.val_loader)
    yield from broken
    if broken:
        return
    if extras.loader is None:
        raise NotTestable("give `loader`, and `val_loader` to compare both sets")
    yield holds("batches, items and transforms" + (" and both sets" if extras.val_loader is not None else ""))


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
    return Result(
        "broken",
        f"a batch has {min(rows)} sample{'s' * (min(rows) > 1)}, and the loader draws {size} for it: the others are"
        " dropped",
        "collate_fn",
        f"a batch size of {size}",
        ("a processor or collate_fn returns the first sample only (lists of images inside of one list)",),
        "Compare len(examples) with the first dimension of what collate_fn returns",
        rule="data.batch_size",
    )


def _labels(step: Experiment) -> Iterator[Result]:
    """Report samples without a single label that counts."""
    for name, t in dotted_tensors(step.batch):
        if t.ndim >= 2 and t.dtype == torch.int64 and bool((t == -100).any()):
            empty = (t == -100).flatten(1).all(1)
            if int(empty.sum()) >= max(2, 0.1 * len(t)):
                yield Result(
                    "broken",
                    f"{int(empty.sum())} of {len(t)} samples have no label that counts, only -100",
                    f"batch.{name}",
                    "a label for each sample",
                    ("prompts are cut to the maximum length, and nothing of the answer is left", "masks are inverted"),
                    "Cut from the left, raise the maximum length, or drop these samples",
                    rule="data.labels",
                )


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
                yield Result(
                    "broken",
                    f"the last token of a text has no label, only -100, in each of {int(padded.sum())} samples that"
                    " are filled up: the end of a text is never learned, and generation does not stop",
                    f"batch.{name}",
                    "a label for the token that ends a text",
                    ("the padding token is the end token (pad_token = eos_token), and labels are masked by it",),
                    "Mask labels where attention_mask is 0, or use a padding token of its own",
                    rule="data.ends",
                )
                return


def _extras(step: Experiment) -> Iterator[Result]:
    """Report a target of one number for each sample that is one of the numbers of that sample."""
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
                yield Result(
                    "broken",
                    f"value {int(equal.to(torch.uint8).argmax())} of batch.{other} is batch.{name} in each of {n}"
                    " samples, to the last bit",
                    f"batch.{other}",
                    "an input without the target",
                    ("the column of the label is left in the features", "a window that holds what comes next"),
                    "Take it out of the input",
                    rule="target.given",
                )
                return


class InterpolationWatch(TorchFunctionMode):
    """While it is entered, `blurred` gets whole numbers that were resized by averaging and became whole again."""

    def __init__(self) -> None:
        super().__init__()
        self.blurred: list[tuple[str, int, int]] = []
        self._waiting: dict[int, tuple[Tensor, str, int, int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        try:
            self._look(func, args, kwargs or {}, result)
        except Exception:  # of ocrlab itself: the user's transform goes on
            self._waiting.clear()
        return result

    def _look(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if func is functional.interpolate and args and isinstance(result, Tensor):
                mode = kwargs.get("mode", args[3] if len(args) > 3 else "nearest")
                before, after = args[0].detach(), result.detach()
                distinct = before.unique()
                whole = bool((before == before.round()).all()) and 2 < distinct.numel() <= 64
                if mode in ("bilinear", "bicubic", "linear", "area", "trilinear") and whole:
                    share = int((after != after.round()).sum())
                    if share:
                        self._waiting[id(result)] = (result, mode, share, after.numel())
                return
            source = args[0] if args and isinstance(args[0], Tensor) else None
            known = self._waiting.get(id(source)) if source is not None else None
            if known is None or not isinstance(result, Tensor):
                return
            if not result.is_floating_point():
                self.blurred.append(known[1:])
                self._waiting.clear()
            elif name in PASSING:
                self._waiting[id(result)] = (result, *known[1:])

    def result(self) -> Result | None:
        """Return that a label map is resized by averaging its classes, else None."""
        if not self.blurred:
            return None
        mode, between, count = self.blurred[0]
        return Result(
            "broken",
            f"a mask of classes is resized with {mode} interpolation and rounded: {between} of {count} pixels lie"
            " between two classes, so that borders get a label that neither side has",
            "the transform of the data set",
            "the labels that were there",
            (f"one resize for images and masks, with mode={mode!r}",),
            'Resize masks and other labels with mode="nearest"',
            rule="data.interpolated",
        )


def _items(step: Experiment, loader: Any) -> Iterator[Result]:
    """Read some items twice with the same random numbers; the attributes of the data set are put back."""
    dataset = getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return
    kept = dict(vars(dataset)) if hasattr(dataset, "__dict__") else {}
    watch = InterpolationWatch()
    step.restore()
    try:
        for index in range(min(ITEMS, len(dataset))):
            reads = []
            for _ in range(2):
                step.state.restore_random()
                with watch:
                    item = dataset[index]
                reads.append([t.detach().clone() for t in _tensors(item)])
            first, second = reads
            changed = len(first) == len(second) and any(
                a.shape != b.shape or not bool(((a == b) | (a != a)).all()) for a, b in zip(first, second, strict=True)
            )
            draws = any(isinstance(v, torch.Generator | random.Random | np.random.Generator) for v in kept.values())
            if changed and not draws:
                yield Result(
                    "broken",
                    f"item {index} is another one when it is read a second time, with the same random numbers",
                    "the data set",
                    "the same item each time",
                    ("__getitem__ writes into the stored sample (x -= mean, x /= 255)", "it counts its calls"),
                    "Write x = x - mean in place of x -= mean, or clone the sample first",
                    rule="data.item",
                )
                break
    except Exception as error:
        raise NotTestable(f"an item cannot be read alone ({type(error).__name__})") from error
    finally:
        if kept:
            vars(dataset).update(kept)
        step.restore()
    blurred = watch.result()
    if blurred:
        yield blurred


def _tensors(item: Any) -> list[Tensor]:
    found = [t for _, t in dotted_tensors(item)]
    return found or [torch.as_tensor(a) for a in _arrays(item)]


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


def _hashes(dataset: Any, until: float) -> list[bytes]:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return []
    hashes = []
    for index in range(min(len(dataset), MOST_ITEMS)):
        hashes.append(content(dataset[index]))
        if clock() > until:
            break
    return [h for h in hashes if h is not None]


def _shared(step: Experiment, loader: Any, val_loader: Any) -> Iterator[Result]:
    """Compare the content of the items of both sets."""
    sets = []
    for part in (loader, val_loader):
        step.state.restore_random()
        sets.append(_hashes(getattr(part, "dataset", part), clock() + SECONDS))
    step.restore()
    text = overlap(sets[0], sets[1])
    if text:
        yield Result(
            "broken",
            text,
            "the validation set",
            "samples that are not in the training set",
            (
                "a source is repeated before the split",
                "the split is drawn anew without a seed",
                "one file list for both",
            ),
            "Split first and repeat or augment after that; compare the ids of both sets",
            rule="data.leak",
        )


def overlap(train: Iterable[Hashable], valid: Iterable[Hashable]) -> str:
    """Return that validation items are also training items, '' where there is none or where chance explains it.

    Few possible items come twice by chance: then as many training items are met among the others, as often as a
    Poisson distribution says. Repeated sources show a number of copies that many items share.
    """
    counts, rows = Counter(train), list(valid)
    drawn = sum(counts.values())
    met = sum(row in counts for row in rows)
    if not drawn or not rows or met < max(3, 0.01 * len(rows)):
        return ""
    # chance: how often a training sample is met again among the others, and four standard errors more
    share, own = met / len(rows), (sum(n for n in counts.values() if n > 1) + 1) / (drawn + 2)
    times = Counter(counts.values())
    repeated = any(times[k] > 2 * times[k - 1] + 5 for k in times if k > 1)
    if (repeated and share < 0.9) or share > own + 4 * (own * (1 - own) / len(rows)) ** 0.5:
        copies = max(times, key=lambda k: times[k] * (k > 1))
        more = f", {times[copies]} of whose samples come {copies} times" if repeated and copies > 1 else ""
        return f"{met} of {len(rows)} validation samples are also in the training set{more}, to the last bit"
    return ""
