"""Profiled steps are listed by operator, module and source line, and compute the same as without the profiler."""

import gzip
import inspect
import json
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks

from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.debug.instruments.memory import memory_watch
from ocrlab.debug.instruments.profiler import module_ranges, operators, step_profiler, sync_points
from ocrlab.errors import ConfigError


class Net(nn.Module):
    """Two parts whose names must come back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Conv2d(8, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(images))  # type: ignore[no-any-return]


def train(count: int, profile: Any = None) -> tuple[list[float], int]:
    """Return the losses of some steps, and the line at which they are read."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        out = model(torch.randn(2, 3, 16, 16))
        loss = nn.functional.dropout(out, 0.2)[out > -9].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if profile is not None:
            profile.step()
    source, first = inspect.getsourcelines(train)
    return losses, first + next(i for i, line in enumerate(source) if "loss.item()" in line)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[step_profiler.StepProfile, list[float], int]:
    with step_profiler.steps(skip=1, steps=2, folder=tmp_path_factory.mktemp("trace")) as profile:
        losses, line = train(6, profile)
    return profile, losses, line


def test_nothing_that_is_computed_changes_and_every_hook_is_out(done: Any) -> None:
    assert done[1] == train(6)[0]
    assert not hooks._global_forward_pre_hooks and not hooks._global_forward_hooks
    assert sync_points.torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_operators_belong_to_modules_also_in_the_backward_pass(done: Any) -> None:
    table = done[0].table()
    assert 0 < table["share"].sum() <= 1.01
    rows = {(row.operator, row.module, row.phase): row for row in table.itertuples()}
    assert rows["aten::convolution_backward", "head", "backward"].calls == 1
    forward = [row for key, row in rows.items() if key[1:] == ("encoder.0", "forward") and "conv" in key[0]]
    assert any("2×3×16×16" in row.shapes for row in forward)
    assert any(row.phase == "optimiser" for row in rows.values())
    assert {"encoder.0", "encoder.1", "head"} <= set(table["module"])


def test_each_line_that_would_wait_is_listed_once_with_its_count(done: Any) -> None:
    profile, _, line = done
    table = profile.waits()
    [item] = table[table["operator"] == "item"].itertuples()
    assert (item.line, item.function, item.times) == (line, "train", 1)
    assert Path(item.file).name == Path(__file__).name and "loss.item()" in item.source
    masks = table[table["operator"] == "index by a mask"]
    assert sorted(masks["within"]) == ["", "backward"]


def test_the_finding_names_operator_module_and_line(done: Any) -> None:
    sentence = done[0].finding()
    assert "% of the step" in sentence and "the host would wait for the device at test_step_profiler.py:" in sentence
    text = str(done[0])
    assert text.startswith(sentence) and "loss.item()" in text and "object at" not in text


def test_perfetto_can_read_the_trace_with_module_names(done: Any) -> None:
    with gzip.open(done[0].trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    assert "module: encoder.0" in {event.get("name") for event in events}
    assert done[0].trace.stat().st_size < 1_000_000


def test_a_profiler_that_runs_already_switches_ours_off(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with step_profiler.steps(skip=1, steps=1) as profile:
            losses, _ = train(3, profile)
    assert losses == train(3)[0]
    assert "profile.steps ended early" in capsys.readouterr().err
    assert profile.finding().startswith("Nothing was profiled: ")


@pytest.mark.parametrize("arguments", [{"skip": -1}, {"steps": 0}])
def test_numbers_without_sense_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="cannot be profiled"), step_profiler.steps(**arguments):
        pass


def test_ranges_survive_a_module_that_raises() -> None:
    class Fails(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError

    model = nn.Sequential(nn.Identity(), Fails())
    marks = module_ranges.ModuleRanges()
    marks.start()
    with pytest.raises(ArithmeticError):
        model(torch.ones(1))
    assert marks.stack.entered == []
    assert marks.name(model[1], False) == "1" and marks.name(model, False) == "Sequential"
    marks.stop()


def test_a_compiled_model_is_profiled_without_compiling_it_again() -> None:
    torch._dynamo.reset()  # more than eight compiled modules with hooks, and nothing is compiled any more
    counts: list[int] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Any:
        counts.append(1)
        return graph.forward

    model = torch.compile(Net(), backend=backend)
    for named in (None, model):
        with warnings.catch_warnings(), step_profiler.steps(skip=2, steps=2, model=named) as profile:
            warnings.simplefilter("error")
            for _ in range(5):
                model(torch.randn(2, 3, 16, 16)).square().mean().backward()
                profile.step()
        assert not profile.table().empty
    assert len(counts) == 1


def test_a_step_that_is_mostly_python_is_reported_as_such() -> None:
    model = nn.Linear(256, 256)
    with step_profiler.steps(skip=2, steps=2) as profile:
        for _ in range(5):
            model(torch.randn(512, 256)).square().mean().backward()
            until = time.perf_counter() + 0.1
            while time.perf_counter() < until:
                pass
            profile.step()
    assert "outside of torch's operators: Python, or other libraries" in profile.finding()


def test_a_trace_that_cannot_be_written_is_reported_with_the_finding(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with step_profiler.steps(skip=0, steps=1, folder=tmp_path / "file") as profile:
        train(2, profile)
    assert "of the step" in profile.finding() and "the trace was not written" in profile.finding()


def test_too_few_steps_are_reported_with_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with step_profiler.steps(skip=5) as profile:
        train(2, profile)
    assert profile.finding() == "Nothing was profiled: 2 steps are fewer than skip=5 + 1"
    assert profile.table().empty and profile.waits().empty
    with step_profiler.steps(skip=0, steps=2) as profile:
        train(2)
    assert "step() of the profile was never called" in profile.finding()
    with step_profiler.steps(skip=0, steps=2) as profile:
        train(2, profile)
    assert "as 3 steps are needed and 2 came" in profile.finding()
    assert len(profile.seconds) == 2 and not profile.table().empty and capsys.readouterr().err == ""


def test_another_instrument_is_not_taken_for_the_users_line() -> None:
    model, optimizer = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), None
    with (
        layer_watch.watch(model, "*"),
        memory_watch.watch(model, optimizer),
        step_profiler.steps(skip=1, steps=2) as profile,
    ):
        for _ in range(5):
            model(torch.randn(4, 8)).sum().item()
            profile.step()
    assert {place.operator: count for place, count in profile.places()} == {"item": 1}
    assert "is what looks at each operator" in profile.finding()
    assert "step is PythonDispatchMode" not in profile.finding()


def warn(warned: sync_points.WarnedWaits) -> list[str]:
    with warned:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("of the user", stacklevel=1)
        return [message.filename for message in warned.take()] + [message.filename for message in warned.take()]


def test_warnings_of_a_wait_are_recorded_and_all_others_are_shown() -> None:
    show, filters = warnings.showwarning, list(warnings.filters)
    with pytest.warns(UserWarning, match="of the user") as shown:
        assert warn(sync_points.WarnedWaits()) == [__file__] * 2
    assert len(shown) == 1 and warnings.showwarning is show and list(warnings.filters) == filters


def test_device_time_that_overlaps_counts_once() -> None:
    def event(name, start, end, device="CUDA", host=0.0, **more):
        span = SimpleNamespace(start=start, end=end)
        kind = f"DeviceType.{device}"
        return SimpleNamespace(name=name, time_range=span, device_type=kind, self_cpu_time_total=host, **more)

    kernels = [event("kernel", 0, 1e6), event("kernel", 0.5e6, 2e6)]
    mirrored = event("module: net", 0, 8e6, is_user_annotation=True)  # a range on the device, with the gaps in it
    events = [*kernels, event("cudaStreamSynchronize", 0, 9e6, "CPU", 5e5), mirrored]
    assert (operators.busy_seconds(events), operators.waiting_seconds(events)) == (2.0, 0.5)
