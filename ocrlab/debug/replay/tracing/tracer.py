"""Tracing inside a replaying process: every module and operator of the last step, and where its first fault is.

Where the step is goes to `out/trail.bin` before each operator, so that it is known after a crash too; what was found is
in `out/trace.json`. Shapes: B samples.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab import run_folder
from ocrlab.debug.flight_record import replay_position
from ocrlab.debug.instruments import batch_tree, tensor_tree
from ocrlab.debug.instruments.compiled_modules import is_compiled
from ocrlab.debug.replay.tracing import batch_rows, cuda_context, fault_report, nonfinite_tracker, per_sample_forks
from ocrlab.debug.replay.tracing.fault_report import Fault
from ocrlab.debug.replay.tracing.nonfinite_tracker import NonFiniteOrigin, Rebuild, pointer
from ocrlab.debug.replay.tracing.per_sample_forks import BatchMaker
from ocrlab.debug.replay.tracing.step_trace import StepTrace
from ocrlab.run_folder import fail_safe

MOST_AHEAD = 4  # batches by which a program may be ahead of the step that uses them


class Tracer:
    """The trace of a replay; `begin` and `end` stand around each micro-batch. Nothing of it raises or draws numbers."""

    def __init__(
        self, model: nn.Module | Sequence[nn.Module], job: Mapping[str, Any], ring: Any = None, *, optimizers: Any = ()
    ) -> None:
        variant = job.get("cell") or {}
        prepare(variant)
        self.out = Path(job["out"])
        fail_safe.write_errors_to(self.out / fail_safe.TRACER_NAME)
        self.on = bool(variant.get("trace"))
        self.first = int(variant.get("trace_from", job["last_step"]))
        self.alone: float | None = variant.get("alone")  # seconds for each sample by itself
        self.like: dict[str, Any] = variant.get("like") or {}  # the fault that the whole batch has
        self.swallowed = bool(variant.get("swallowed"))  # exceptions after which the program goes on are faults too
        self.is_fork = self.is_behind = False
        self.micro: int | None = variant.get("micro")  # the micro-batch that this is about, None: all of the last step
        self.ring = ring
        self.roots = [model] if isinstance(model, nn.Module) else list(model)
        self.compiled = any(is_compiled(root) for root in self.roots)
        self.optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        self.page: replay_position.Writer | None = None
        self.step: StepTrace | None = None
        self.batch: Any = None
        self.names: list[str] = []
        self.count: int | None = None
        self.about: dict[str, Any] = {}
        self.anew: Rebuild | None = None
        self.phase = ""
        self.earlier: dict[int, NonFiniteOrigin] = {}  # NaN and Inf of earlier batches, which the program may keep
        self.harmless: set[tuple[str, ...]] = set()  # what a step before, which went well, has of NaN and Inf too
        self.fetched: list[Any] = []  # the newest batches; held, so that their storages are not others' meanwhile
        self.fetched_in = 0  # the thread that has fetched the newest

    def begin(
        self, batch: Any, names: Sequence[str], number: int, micro: int, *, phase: str = "", anew: Rebuild | None = None
    ) -> Any:
        """Begin a micro-batch of optimizer step `number`, after its batch was loaded; `names` are of its samples.

        Returns the batch that the step is to use: the same object, in a fork a part of it. `anew` returns the names of
        its samples and what puts a batch together of some of them, or None. `phase` is the phase of a fault where the
        batch belongs to no step: validation.
        """
        self._leave(0)
        self._stop()
        self.is_behind = False
        if not self.on:
            return batch
        self.fetched, self.fetched_in = [batch, *self.fetched[:MOST_AHEAD]], threading.get_ident()
        if number < self.first - 1:
            return batch
        with _harmless():
            self.names, self.anew = [str(name) for name in names], anew
            if number >= self.first and self.micro in (None, micro):
                batch = self._narrow(batch)
            self.batch, self.count = batch, batch_tree.batch_size(batch, self.names)
            self.about, self.phase = {"step": number, "micro": micro}, phase
            if (error := cuda_context.cause_of_death()) is not None:
                self.batch = None  # it may lie on the device
                self._write("failed", fault_report.death_before_step(error))
                return batch
            if self.page is None:
                self.out.mkdir(parents=True, exist_ok=True)
                self.page = replay_position.Writer(self.out / "trail.bin")
            if number >= self.first:
                self._write("running", None)
            self._start_step(batch, evaluates=batch is None)
        return batch

    def behind(self) -> None:
        """Continue after the last batch, where the program may meet the NaN and Inf again that it has kept of steps."""
        if not self.on or not self.earlier or self.page is None or self.is_fork:
            return
        with _harmless():
            self.batch, self.count, self.anew, self.is_behind = None, None, None, True
            self._start_step(None)

    def _start_step(self, batch: Any, *, evaluates: bool = False) -> None:
        assert self.page is not None, "the caller has opened it"
        trail = (self.roots, self.optimizers, self.about, self.page, self.ring)
        self.step = StepTrace(*trail, batch, self.count, self.harmless, self.earlier, evaluates=evaluates)

    def _narrow(self, batch: Any) -> Any:
        """Leave in a batch only what this variant is about; with `alone` in a fork for each sample."""
        if self.alone is None:
            return batch
        count, way = batch_tree.batch_size(batch, self.names), self._again(batch)
        if way is None and count:
            cut = lambda positions: batch_tree.select(batch, positions, count)  # noqa: E731
            names = self.names if len(self.names) == count else []
            way = BatchMaker(names, count, cut, partial=batch_tree.is_partial(batch, count))
        if way is None:
            return batch
        positions = per_sample_forks.each(self.alone, self.out, way, self.like)
        self.is_fork = True  # from here on this is the process of a part
        self.out, self.alone, self.page, self.anew = per_sample_forks.place(self.out, positions), None, None, None
        self.names = [way.names[p] for p in positions if p < len(way.names)]
        try:
            return way.make(positions)
        except Exception:  # it cannot be put together: that is another fault
            per_sample_forks.leave(1)

    def _again(self, batch: Any) -> BatchMaker | None:
        """Return how the batch is put together of its samples, None where that gives another one."""
        with contextlib.suppress(Exception):
            parts = self.anew() if self.anew is not None else None
            if parts is not None and batch_tree.same_batch(parts[1](range(len(parts[0]))), batch):
                return BatchMaker(parts[0], len(parts[0]), parts[1])
        return None

    def _origins(self, fault: Fault) -> list[str]:
        """Return the names of a fault's samples by how its batch was put together, [] where that does not tell; takes
        the samples away where a sort has given them another order than their names have.
        """
        rows, count = fault.get("samples"), self.count
        is_dead = self.step is not None and self.step.dead  # then what lies on the device answers nothing any more
        if not rows or not count or (is_dead and any(t.is_cuda for _, t in tensor_tree.tensors(self.batch))):
            return []
        way, origins = self._again(self.batch), None
        with contextlib.suppress(Exception):
            is_named = way is not None and way.names == self.names
            if way is not None and is_named and batch_tree.changes_order(way.make, way.count):
                fault["samples"] = None
                return []
            if way is not None and (is_named or len(self.names) != count):
                origins = batch_rows.name_rows(rows, self.batch, count, way.names, way.make)
        if origins is None and self.names and len(self.names) != count:
            return [f"row {row} of the batch" for row in rows]
        return [batch_tree.name_of_part(name, str(fault.get("tensor") or "")) for name in origins or ()]

    def end(self, loss: Tensor | float | None = None) -> None:
        """End a micro-batch: decide what its first fault was, and write that down; a fork ends here."""
        step = self.step
        if step is None:
            return self._leave(0)
        step.stop()
        with _harmless(), torch.no_grad():
            step.wait_for_last()
            error = step.swallowed()
            is_dead = error is not None and step.is_dead(error)  # then each step after it fails, whoever catches that
            fault = None if is_dead else fault_report.value_fault(step, _value(loss), self.batch, self.count)
            if error is not None and fault is None and (self.swallowed or is_dead):
                fault = fault_report.exception_fault(step, error, self.batch, self.count)
                fault = fault and {**fault, "swallowed": True}
            if fault is None:
                self.harmless |= step.values.signatures()
            if self.about["step"] >= self.first or is_dead:
                self._write("done", fault)
        self._stop()
        self._leave(0)

    def failed(self, error: BaseException, loss: Tensor | float | None = None) -> None:
        """Place an exception that ends the replay, after `loss` where that was known; after a sticky CUDA error no
        tensor is touched.
        """
        step = self.step
        if step is not None and not isinstance(error, KeyboardInterrupt | GeneratorExit):
            step.stop()
            with _harmless():
                if cuda_context.named_cause(error) is None:
                    step.wait_for_last()  # the program may have failed by what a kernel had left undone
                value = None if step.is_dead(error) else _value(loss)
                fault = fault_report.exception_fault(step, error, self.batch, self.count, value)
                if not self.is_behind or "batch_before" in (fault or {}):  # else it is not a step's
                    self._write("failed", fault)
            self._stop()
        self._leave(1)

    def close(self) -> None:
        """Take every hook away."""
        self._stop()
        if self.page is not None:
            self.page.close()
            self.page = None

    def _leave(self, status: int) -> None:
        """End a fork for one sample: it was for this micro-batch."""
        if self.is_fork:
            per_sample_forks.leave(status)

    def _stop(self) -> None:
        if self.step is not None:
            self.step.stop()
            names = self.names if len(self.names) == self.count else []
            self.earlier = self.step.values.carry_over({**self.about, "names": names, "phase": self.phase})
        self.step = None

    def _write(self, state: str, fault: Fault | None) -> None:
        """Write what is known, whole or not at all; a fault that was found in an earlier micro-batch stays."""
        if fault is not None:
            before, tensor = fault.pop("batch_before", None), str(fault.get("tensor") or "")
            called = [] if before else self._origins(fault)  # else the program had kept what an earlier batch made
            if fault.get("kind") == "nonfinite" and tensor.startswith("input batch") and not before:
                with _harmless():
                    fault["loaded_by"] = nonfinite_tracker.find_loading_line(self.anew, str(fault.get("value")))
            of = before or {**self.about, "names": self.names, "phase": self.phase}
            names, rows = of["names"], fault.get("samples")
            if rows is not None and not called:
                called = [names[row] if row < len(names) else f"sample {row} of the batch" for row in rows]
                called = [batch_tree.name_of_part(name, tensor) for name in called]
            fault = {**of, **fault, "names": None if rows is None and not called else called}
            fault |= {"phase": of["phase"]} if of["phase"] else {}
            fault |= {"ahead": True} if self._is_ahead() else {}
        content = {"schema": 1, "pid": os.getpid(), **self.about, "state": state, "samples": self.names, "fault": fault}
        content |= {"compiled": self.compiled, "count": self.count}
        run_folder.write_json(self.out / "trace.json", content, private=True)
        if fault is not None:
            self.on = False  # the first one is what was asked for

    def _is_ahead(self) -> bool:
        """Return whether the step has used an older batch than the newest one, or may have, as another thread fetches
        them.
        """
        if self.step is None or self.fetched_in != threading.get_ident():
            return self.step is not None
        newest, *older = ({pointer(t) for _, t in tensor_tree.tensors(batch)} - {0} for batch in self.fetched)
        used = self.step.storages
        return bool(newest) and not newest & used and any(batch & used for batch in older)


def _value(loss: Tensor | float | None) -> Tensor | None:
    return loss.detach() if isinstance(loss, Tensor) else None if loss is None else torch.tensor(float(loss))


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Keep an error of the instrument from the training that it looks at."""
    try:
        yield
    except Exception as error:
        fail_safe.report(error, "tracing failed", name="ocrlab replay")


def prepare(variant: Mapping[str, Any]) -> None:
    """Switch what a variant asks for, until this process ends: eager where it traces, fp32, threads, mkldnn, cudnn."""
    if variant.get("trace"):
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # read when the compiler is imported, which takes seconds
        if "torch._dynamo" in sys.modules:
            with contextlib.suppress(AttributeError, RuntimeError):  # before torch 2.6
                torch.compiler.set_stance("force_eager")
    if variant.get("fp32"):
        original = torch.autocast.__init__

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args[:2], **{**kwargs, "enabled": False})

        torch.autocast.__init__ = init  # type: ignore[method-assign]
    if variant.get("threads"):
        torch.set_num_threads(int(variant["threads"]))
    if variant.get("mkldnn") is False:
        torch.backends.mkldnn.set_flags(False)
    if variant.get("cudnn") is False:
        torch.backends.cudnn.enabled = False
