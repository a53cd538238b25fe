"""Names of parameters, places and errors in words, for the findings of a training step."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check.findings import is_readable
from ocrlab.debug.instruments.tensor_tree import dotted_tensors

SHAPE = re.compile(r"\[(\d+(?:, \d+)+)\]")
CHANNELS = re.compile(r"to have (\d+) channels")
VOID = 255  # the class of pixels that do not count, in many data sets


def group_by_module(model: nn.Module, names: Sequence[str]) -> list[list[str]]:
    """Return parameter names in groups, one for each highest module all of whose parameters are among them."""
    left, groups = list(names), []
    for module, _ in model.named_modules():
        if module and left:
            prefix = f"{module}."
            all_of_it = [name for name, _ in model.named_parameters() if name.startswith(prefix)]
            mine = [name for name in left if name.startswith(prefix)]
            if mine and len(mine) == len(all_of_it):
                groups.append(mine)
                left = [name for name in left if not name.startswith(prefix)]
    return [*groups, *([name] for name in left)]


def listing(model: nn.Module, names: Sequence[str]) -> str:
    """Return parameter names in words: whole modules by their name."""
    return shortened_list([common_prefix(rest) for rest in group_by_module(model, names)])


def common_prefix(names: Sequence[str]) -> str:
    """Return what a module's parameters have in common, with their number."""
    if len(names) == 1:
        return names[0]
    words = [name.split(".") for name in names]
    same = 0
    while all(len(w) > same + 1 and w[same] == words[0][same] for w in words):
        same += 1
    return f"{'.'.join(words[0][:same])} ({len(names)} parameters)"


def shortened_list(names: Sequence[str], most: int = 6) -> str:
    """Return names in words, the first few of them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def index_text(broken: Tensor) -> str:
    """Return the position of the first True of a mask, as one writes it in code."""
    at = torch.nonzero(broken)[0].tolist() if broken.ndim else []
    return f"[{', '.join(map(str, at))}]"


def remedy(function: str, values: Tensor, broken: Tensor, high: float) -> str:
    """Return what to do about indices that are out of bounds, by what takes them and what they are."""
    wrong = values[broken]
    if function != "__getitem__" and bool((wrong == high + 1).all()) and int(values.min()) == 1:
        return f"They go from 1 to {int(high) + 1}: subtract 1 where they are made, or let there be one more"
    if function.startswith("embedding"):
        return "Look at the vocabulary of what made these numbers (a tokenizer's), and at num_embeddings"
    if function in ("__getitem__", "index_select", "index_add_"):
        return "Look at how this index is made, and at the size of what it takes from"
    do = "Look at how the labels are numbered, and at the number of classes"
    value = int(wrong.flatten()[0])
    if function in ("cross_entropy", "nll_loss") and (value < 0 or value == VOID) and bool((wrong == value).all()):
        return f"If {value} says that something does not count, tell the loss: ignore_index={value}. Else l{do[1:]}"
    return do


def origin_text(values: Tensor, broken: Tensor, batch: Sequence[tuple[str, Tensor]]) -> str:
    """Return in which tensor of the batch a wrong index stands, where another tensor was made of it; else nothing."""
    whole = [(name, t) for name, t in batch if is_readable(t) and not t.is_floating_point() and t.dtype != torch.bool]
    if any(t.untyped_storage().data_ptr() == values.untyped_storage().data_ptr() for _, t in whole):
        return ""
    value = values[broken].flatten()[0]
    same = [(name, t) for name, t in whole if t.shape == values.shape and bool((t == values.to(t.device)).all())]
    matches = [(name, t.detach() == value.to(t.device)) for name, t in same or whole]
    matches = [(name, there) for name, there in matches if bool(there.any())]
    if len({name.rpartition(".")[2] for name, _ in matches}) != 1:
        return ""
    name, there = matches[0]
    return f"; it stands in batch.{name}{index_text(there)}" + (f" and {len(matches) - 1} more" if matches[1:] else "")


def last_line(error: BaseException) -> str:
    """Return the file and line at which something was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if "/torch/" not in frame.filename and "/instruments/step_check/" not in frame.filename
    ]
    if not own:
        return "in torch"
    return f"{own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}"


def advice(error: BaseException, batch: Any, model: nn.Module) -> str:
    """Return what to do about an error of the forward pass."""
    text, devices = str(error), {str(t.device) for _, t in dotted_tensors(batch)}
    if "Expected more than 1 value per channel" in text:
        return "Use a larger batch or crop: BatchNorm has one value for each channel here"
    if "class probabilities" in text:
        return "Targets of the logits' shape are probabilities: .float() where they are one-hot, or classes: .argmax(1)"
    if "to the desired output type Long" in text:
        return "Targets of this loss are numbers with a point: .float(); whole numbers are classes, for cross_entropy"
    if "dtype to be Long" in text or "scalar type Long" in text:
        return "Targets of this loss are the numbers of classes: .long()"
    shapes = [tuple(map(int, each.split(", "))) for each in SHAPE.findall(text)]
    wanted = CHANNELS.search(text)
    if wanted and any(shape[-1] == int(wanted[1]) for shape in shapes[-1:]):
        return "The channels stand last: .permute(0, 3, 1, 2) of images, .transpose(1, 2) of sequences"
    if any(_turned(first, second) for first in shapes for second in shapes):
        return "Height and width of one are exchanged: arrays are (height, width), sizes in PIL and OpenCV the reverse"
    if "same device" in text:
        return f"Move the batch ({', '.join(sorted(devices))}) to the model's device"
    if "positional argument" in text or "has no attribute" in text:
        return "`loss` is called as loss(model, batch) and does the whole forward pass"
    return "Look at the line that is named; its shapes stand in the stages of the report"


def _turned(first: Sequence[int], second: Sequence[int]) -> bool:
    """Tell whether the last two sizes of one shape are those of another in the other order."""
    return (
        min(len(first), len(second)) > 2
        and first[-1] != first[-2]
        and (first[-1], first[-2]) == (second[-2], second[-1])
    )
