"""What the first fault of a traced step was: an exception, a NaN or Inf, or a target out of range, each with its place.

A fault is a JSON-ready dict: kind (exception, nonfinite, target, index), text, phase, path, module, call, op, node,
inputs, given (inputs with who made them), line, and of values: tensor, value, index, sample, pixel, allowed, by; of an
exception: changed (what another operator has written over).
`samples` are the positions in the batch that make it, None where the batch does not tell. Shapes: B samples.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments import batch_tree, cuda_sticky_errors, tensor_tree
from ocrlab.debug.instruments.user_code import is_own
from ocrlab.debug.recorder import rng_state
from ocrlab.debug.replay.tracing.call_stack import Call, label
from ocrlab.debug.replay.tracing.nonfinite_tracker import NonFiniteOrigin, bad, pointer, root
from ocrlab.debug.replay.tracing.operator_trace import innermost
from ocrlab.debug.replay.tracing.step_trace import StepTrace
from ocrlab.debug.replay.variants import BEFORE_STEP
from ocrlab.run_folder.exception_record import describe

Fault = dict[str, Any]
SPEAKS_OF_VALUES = re.compile(
    r"\bnans?\b|\binfs?\b|infinit|non-?finite|not finite|isfinite|invalid numeric", re.IGNORECASE
)
SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\w+)')
LINE = re.compile(r"(?P<file>.+):(?P<line>\d+) (?P<function>.*)")
GUARD = 3  # lines between a look at a value and the exception that it leads to
LONGEST_CHAIN = 8  # exceptions, each raised from the next
OPERATOR = ("op", "node", "parameter", "inputs", "sources", "from_batch", "from_weights", "function")
PLACE_KEYS = ("phase", "path", "module", "call", *OPERATOR, "line", "entered")


def exception_fault(
    step: StepTrace, error: BaseException, batch: Any, count: int | None, loss: Tensor | None = None
) -> Fault | None:
    """Return the fault that an exception is, or the one that led to it: a bad value, an index out of range.

    Of a program that ends itself (SystemExit) only a bad value is a fault, else None.
    """
    script_line = _scripted(str(error))
    error = step.raised_in[0] if script_line and step.raised_in is not None else error  # what failed in TorchScript
    place = _place(step, error)
    latest = [step.values.latest] if step.values.latest else []
    values = [*step.raised_of, *([step.gradient[1]] if step.gradient else []), *latest, *step.values.order]
    values = [birth for birth in values if not birth.constant] or values
    by_operator = step.died is not None or (step.raised_in is not None and _same(step.raised_in[0], error))
    message = _text(error)
    *_, first = _chain(error)
    if first is not error:
        message = f"{_text(first).splitlines()[0]}, raised again as {message}"
    if step.died_of is not None and not _same(step.died_of, error):  # as a library has it, which noticed it later
        message = f"{_text(step.died_of).splitlines()[0]}, surfaced as {message}"
    surfaced = _own_line(error) or describe(error)["where"]
    unread = by_operator or step.dead
    led = None if unread else _result_fault(step, loss, batch, count)  # bad before the program has noticed it
    if step.outside is not None and by_operator and step.outside[1].get("op") == place.get("op"):
        fault = range_fault(step, batch)
    elif led is not None:
        fault = led
    elif (by_operator and step.raised_of) or (values and (_guards(step, error) or SPEAKS_OF_VALUES.search(message))):
        fault = _led_to(step, values[0], batch)
    elif isinstance(error, SystemExit) and not step.dead:
        return None
    else:
        fault = {"kind": "exception", **{name: place[name] for name in PLACE_KEYS if place.get(name)}, "samples": None}
        fault["line"] = script_line or place.get("line") or surfaced
        fault["changed"] = _changed_in_place(step) if "modified by an inplace operation" in message else ""
        if not (step.dead or cuda_sticky_errors.is_cuda_error(error)):
            fault["samples"] = _alone(step, error, count)
    return {**fault, "exception": message[:2000], "surfaced": surfaced}


def _text(error: BaseException) -> str:
    description = describe(error)
    return f"{description['type']}: {description['message']}"


def death_before_step(error: BaseException) -> Fault:
    """Return the fault of a step that began in a dead CUDA context: another one, of a step before it."""
    return {"kind": "exception", "phase": BEFORE_STEP, "samples": None, "exception": _text(error)[:2000]}


def value_fault(step: StepTrace, loss: Tensor | None, batch: Any, count: int | None) -> Fault | None:
    """Return the fault in what a step without an exception has computed, or None."""
    fault = _result_fault(step, loss, batch, count)
    if fault is None and step.outside is not None and step.outside[0].role.startswith("target"):
        return range_fault(step, batch)
    return origin_fault(step, step.before_step[0]) if fault is None and step.before_step else fault


def _result_fault(step: StepTrace, loss: Tensor | None, batch: Any, count: int | None) -> Fault | None:
    """Return the fault that the loss, a gradient or a weight shows by a bad value, None where all are finite."""
    eldest = next((birth for birth in step.values.order if not birth.constant), None)
    if step.loss is not None:
        return _led_to(step, step.loss, batch)
    if loss is not None and bad(loss):
        birth = step.values.of(loss) or eldest
        return _led_to(step, birth, batch) if birth else {"kind": "nonfinite", "tensor": "loss", "samples": None}
    if step.gradient is not None:
        return {**origin_fault(step, step.gradient[1]), "reaches": f"gradient of {step.gradient[0]}"}
    for name, parameter in step.parameters().items():
        if bad(parameter.detach()) and (birth := step.values.of(parameter.detach()) or eldest) is not None:
            return {**origin_fault(step, birth), "reaches": f"weight {name}"}
    return None


def _scripted(message: str) -> str:
    """Return the innermost line of the user's own in what TorchScript says; empty for any other exception."""
    if "failed in the TorchScript interpreter" not in message.partition("\n")[0]:
        return ""
    places = [match for match in SCRIPTED.finditer(message) if is_own(match["file"])]
    return "{file}:{line} {name}".format(**places[-1].groupdict()) if places else ""


def _guards(step: StepTrace, error: BaseException) -> bool:
    """Return whether the program has raised where it had just looked at a bad value: `if loss.isnan(): raise`."""
    read, raised = LINE.fullmatch(step.read), LINE.fullmatch(_own_line(error))
    if read is None or raised is None or read.group("file", "function") != raised.group("file", "function"):
        return False
    return 0 <= int(raised["line"]) - int(read["line"]) <= GUARD


def _changed_in_place(step: StepTrace) -> str:
    """Return the operator, with its line, that has changed what the node which raised wanted to read."""
    node = step.backward.node
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            try:
                getattr(node, name.removeprefix("_raw"))
            except RuntimeError:
                data = getattr(getattr(node, name), "data", None)  # torch 2.8 does not give it
                return "" if data is None else step.written.get(pointer(data), "")
    return ""


def _led_to(step: StepTrace, birth: NonFiniteOrigin, batch: Any) -> Fault:
    """Return the fault that a bad value is: the target out of range where the operator that made it was given one."""
    outside, operator = step.outside, root(birth).place.get("op")
    if outside is not None and outside[0].role.startswith("target") and outside[1].get("op") == operator:
        return range_fault(step, batch)
    return origin_fault(step, birth)


def origin_fault(step: StepTrace, birth: NonFiniteOrigin) -> Fault:
    """Return the fault that the eldest of a line of bad tensors is."""
    first = root(birth)
    place = first.place if first.place.get("phase") != "before" else {**(first.first_user or {}), "phase": "forward"}
    fault = {"kind": "nonfinite", **{name: place[name] for name in PLACE_KEYS if place.get(name)}}
    kind, _, name = first.tensor.partition(" ")
    is_stored = first.is_written or kind in ("weight", "buffer", "constant")
    if first.first_user and first not in step.before_step and is_stored:
        fault |= {name: first.first_user[name] for name in PLACE_KEYS if first.first_user.get(name)}
        fault["written"] = f"`{first.place.get('op')}` at {first.place.get('line')}"
    if kind in ("weight", "buffer"):
        owner, modules = name.rpartition(".")[0], {n: m for model in step.roots for n, m in model.named_modules()}
        fault |= {"path": owner, "module": label(modules[owner]) if owner in modules else ""}
    fault |= {"tensor": first.tensor, "value": first.value, "shape": first.shape, "index": list(first.index)}
    fault |= {"share": first.share, "by": first.by, "samples": first.samples, **first.where}
    if place.get("phase") == "optimiser" and not step.dead and (rate := step.bad_rate()) is not None:
        fault["by"] = f"the learning rate is {rate}"
    fault["before"] = first in step.before_step
    fault |= {"guessed": True} if first.guessed else {}
    fault |= {"batch_before": first.batch} if first.batch else {}
    return {**fault, "samples": None, "everyone": first.everyone} if first.everyone else fault


def range_fault(step: StepTrace, batch: Any) -> Fault:
    """Return the fault that the index or target out of range of a step is, with the sample and the pixel."""
    assert step.outside is not None, "the caller has looked"
    violation, place = step.outside
    shape, index, mask = violation.shape, violation.index, violation.mask
    name = _in_batch(violation.tensor, batch)
    if name is not None:  # the loss may have flattened it
        shape = tuple(dict(tensor_tree.tensors(batch))[name].shape)
        mask = mask.reshape(shape)
        index = tuple(torch.nonzero(mask)[0].tolist()) if shape else ()
    is_of_batch = name is not None or step.outside_from_batch  # else no dimension of it is of samples
    rows = step.rows if is_of_batch else None
    samples = batch_tree.positions(mask, step.rows, merged=True) if is_of_batch else None
    is_moved = name is None and step.values.is_moved(violation.source)
    fault = {
        "kind": "target" if violation.role.startswith("target") else "index",
        **{name: place[name] for name in PLACE_KEYS if place.get(name)},
        "tensor": f"{violation.role}{f' {name}' if name else ''}",
        "value": f"{violation.value:g}",
        "index": list(index),
        "allowed": violation.allowed,
        "shape": f"{shape} {str(violation.tensor.dtype).removeprefix('torch.')}",
        **batch_tree.index_in_batch(index, shape, rows),
        "samples": samples,
    }
    if samples and (is_moved or not batch_tree.is_in_first_dimension(shape, step.rows)):
        fault["guessed"] = True
    if name in step.owned:
        fault |= {"sample": step.owned[name], "samples": [step.owned[name]], "guessed": False}
    return fault


def _in_batch(tensor: Tensor, batch: Any) -> str | None:
    """Return the name of the tensor of a batch that another one was made of, by its values; None for none."""
    for name, member in tensor_tree.tensors(batch):
        alike = member.numel() == tensor.numel() and member.dtype == tensor.dtype and member.device == tensor.device
        if alike and bool((member.reshape(-1) == tensor.reshape(-1)).all()):
            return name
    return None


def _place(step: StepTrace, error: BaseException) -> Fault:
    """Return where an exception was raised: in an operator, a module, a node of the graph, or between them. In a dead
    CUDA context it is where that died, as every call after it fails. The op is the user's own function where no
    operator of torch inside it has raised.
    """
    place, raised = _innermost_place(step, error), step.functions.raised
    if raised is not None and step.died is None and _same(raised[0], error):
        place = {**place, "function": raised[1]}
    return {**place, "op": place.get("op") or place["function"]} if place.get("function") else place


def _innermost_place(step: StepTrace, error: BaseException) -> Fault:
    if step.died is not None:
        return step.died[1]
    if step.raised_in is not None and _same(step.raised_in[0], error):
        return step.raised_in[1]
    if step.backward.now is not None:
        node, origin = step.backward.now
        return {"phase": "backward", "node": node, **origin}
    place: Fault = {**step.here(), "line": _own_line(error)}  # what an operator's line was may be long ago
    if step.modules.raised is not None and _same(step.modules.raised[0], error):
        call = step.modules.raised[1]
        inputs = [tensor for _, tensor in tensor_tree.tensors([call.args, dict(call.kwargs)], "")]
        place = {"phase": "loss" if call.is_loss else "forward", "path": call.path, "module": call.label}
        place |= {"sources": step.sources(inputs), "inputs": step.shapes(inputs), "entered": True}
        place |= {"call": call.number} if call.number > 1 else {}
    return {**place, "phase": "validation"} if step.was_evaluating() else place


def _own_line(error: BaseException) -> str:
    """Return the innermost line of the user's own code that an exception went through."""
    return innermost([(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][::-1])


def _chain(error: BaseException, *, contexts: bool = False) -> Iterator[BaseException]:
    """Yield an exception, the one it was raised from, and so on; with `contexts` also those it was raised after."""
    link: BaseException | None = error
    for _ in range(LONGEST_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (link.__context__ if contexts else None)


def _same(raised: BaseException, error: BaseException) -> bool:
    """Return whether two exceptions are one, also where C++ or somebody's `raise ... from` came between."""
    links = _chain(error, contexts=True)
    return any(link is raised or (type(link), str(link)) == (type(raised), str(raised)) for link in links)


@torch.no_grad()
def _alone(step: StepTrace, error: BaseException, count: int | None) -> list[int] | None:
    """Return which samples make a module raise when it gets them one by one; None where that does not tell.

    The step is over, so that nothing which the module changes matters any more.
    """
    call = step.modules.raised[1] if step.modules.raised else None
    if count == 1:
        return [0]
    if call is None or not count or not _same(step.modules.raised[0], error):  # type: ignore[index]
        return None
    tensors = [tensor for _, tensor in tensor_tree.tensors([call.args, dict(call.kwargs)])]
    if any(tensor.is_cuda or step.values.is_moved(tensor) for tensor in tensors):
        return None
    states = rng_state.take(cuda=False)
    failing = [position for position in range(count) if _raises(call, position, count, error, states)]
    return failing if 0 < len(failing) < count else None


def _raises(call: Call, position: int, count: int, error: BaseException, states: Mapping[str, bytes]) -> bool:
    rng_state.restore(states)  # else a module that draws would raise for some of them by chance
    args = tuple(batch_tree.select(value, [position], count) for value in call.args)
    kwargs = {name: batch_tree.select(value, [position], count) for name, value in call.kwargs.items()}
    try:
        call.module(*args, **kwargs)
    except Exception as again:
        return type(again) is type(error) or _same(again, error)
    return False
