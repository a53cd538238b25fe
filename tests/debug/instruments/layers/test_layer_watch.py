"""Watching modules in trainings of many kinds: what is reported, that nothing is changed, and that no hook stays."""

import copy
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.errors import ConfigError
from ocrlab.model.dbnet import Detector


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 4))


def train(model: Any, steps: int = 2, *, parameters: Any = None, batch: Callable[[int], Tensor] | None = None) -> float:
    """Train with SGD and return the last loss."""
    optimizer = torch.optim.SGD(parameters if parameters is not None else model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        x = torch.randn(4, 8, generator=generator) if batch is None else batch(step)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def test_the_table_has_a_row_for_each_module_with_the_facts_of_its_output() -> None:
    model = Detector("resnet18_slim", "fpn", 16).train()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with layer_watch.watch(model) as watch:
        maps = model(images)
        maps.probability.mean().backward()
    row = watch.table().loc["decoder.fusion"]
    assert (row["class"], row["shape"], row["dtype"], row["calls"]) == ("Sequential", (2, 8, 16, 16), "float32", 1)
    assert row["min"] == 0 and 0 < row["zeros"] < 1 and row["std"] > 0
    assert row["grad_std"] > 0 and row["ms"] > 0 and row["backward_ms"] > 0
    assert row["output_mib"] == 2 * 8 * 16 * 16 * 4 / 2**20
    assert (watch.first_nonfinite, watch.fault, watch.note()) == (None, "", "")
    assert str(watch).startswith("All that was watched is finite") and "object at" not in str(watch)


def test_figures_are_those_of_the_tensors() -> None:
    model = small()
    outputs: dict[str, Tensor] = {}
    model[1].register_forward_hook(lambda _m, _a, out: outputs.update(out=out.detach().clone()))
    with layer_watch.watch(model, "1") as watch:
        train(model, 1)
    row = watch.history().set_index("what").loc["output"]  # before ReLU changed it in place
    assert row["mean"] == pytest.approx(float(outputs["out"].mean()), abs=1e-6)
    assert row["std"] == pytest.approx(float(outputs["out"].std(correction=0)), rel=1e-5)


def test_gradients_are_those_of_autograd() -> None:
    model = small()
    gradients: list[Tensor] = []

    def keep(_module: nn.Module, args: Any, _output: Any) -> None:
        args[0].register_hook(lambda gradient: gradients.append(gradient.clone()))

    model[3].register_forward_hook(keep)
    with layer_watch.watch(model, "3") as watch:
        train(model, 1)
    row = watch.history().set_index("what").loc["gradient of input"]
    assert row["max"] == float(gradients[0].max()) and row["shape"] == (4, 16)
    with layer_watch.watch(model, "3", backward=False) as watch:
        train(model, 1)
    assert set(watch.history()["what"]) == {"input", "output"}


@pytest.mark.parametrize("every", [1, 3])
def test_training_is_the_same_bit_for_bit_and_no_hook_stays(every: int) -> None:
    model = small()
    twin = copy.deepcopy(model)
    want, state = train(twin, 4), torch.get_rng_state()
    with layer_watch.watch(model, "*", every=every) as watch:
        assert hooks(model) > 0
        got = train(model, 4)
    assert got == want and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    assert hooks(model) == 0
    assert sorted(set(watch.history()["step"])) == list(range(0, 4, every))


def test_micro_batches_belong_to_the_step_of_the_optimizer() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with layer_watch.watch(model, "3", every=2) as watch:
        for micro in range(9):
            model(torch.randn(4, 8)).sum().backward()
            if micro % 3 == 2:
                optimizer.step()
    outputs = watch.history().query("what == 'output'")
    assert sorted(set(zip(outputs["step"], outputs["micro"], strict=True))) == [(0, 0), (0, 2), (2, 6), (2, 7), (2, 8)]


def test_without_an_optimizer_calls_are_steps_or_the_caller_says() -> None:
    model = small().eval()
    with torch.inference_mode(), layer_watch.watch(model, "3", every=2) as watch:
        for _ in range(5):
            model(torch.randn(4, 8))
    assert list(watch.history().query("what == 'output'")["step"]) == [0, 2, 4]
    assert set(watch.history()["phase"]) == {"eval"}
    with layer_watch.watch(model, "3") as watch:
        for _ in range(2):
            model(torch.randn(4, 8))
            model(torch.randn(4, 8))
            watch.step()
    assert list(watch.history().query("what == 'output'")["step"]) == [0, 0, 1, 1]


def test_a_nan_in_a_page_is_named_with_its_sample() -> None:
    model = small()
    bad = torch.randn(4, 8)
    bad[2, 5] = math.nan
    with layer_watch.watch(model, "*") as watch:
        train(model, 3, batch=lambda step: bad if step == 1 else torch.randn(4, 8))
    first = watch.first_nonfinite
    assert first is not None
    assert (first.step, first.what, first.sample, first.index, first.nan) == (1, "input", 2, (2, 5), 1)
    assert "came in with the batch" in str(first)
    assert watch.table().loc["3", "worst"].startswith("64 in input") and watch.table().loc["3", "nan"] == 16


class Divides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x - x)


class Roots(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 0).sqrt()  # its gradient at 0 is infinite


def test_the_source_of_a_nan_forward_and_backward() -> None:
    for kind, what in ((Divides, "output"), (Roots, "gradient of input")):
        model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(kind()), nn.Linear(8, 2))
        with layer_watch.watch(model, "*") as watch:
            train(model, 1)
        first = watch.first_nonfinite
        assert first is not None
        assert (first.module, first.kind, first.what, first.step) == ("1.0", kind.__name__, what, 0)
        assert "made here" in first.sentence


def test_a_loss_that_spoils_gradients_is_distinguished_from_the_model() -> None:
    model = small()
    with layer_watch.watch(model, "3") as watch:
        (model(torch.randn(4, 8)) * math.inf).sum().backward()
    assert watch.first_nonfinite is not None
    assert "the loss, code between modules" in watch.first_nonfinite.sentence


class Rich(nn.Module):
    """Shared, reused and nested modules; keywords in, a dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = self.a
        self.rnn = nn.LSTM(8, 8)
        self.parts = nn.ModuleList([nn.Linear(8, 8)])
        self.idle = nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        y, (h, c) = self.rnn(self.b(self.a(x)))
        return {"logits": self.parts[0](y) * scale, "aux": [h, {"c": c}], "n": 3, "none": None}


def test_nested_outputs_shared_modules_and_keywords() -> None:
    model = Rich()
    with layer_watch.watch(model, "*") as watch:
        model(x=torch.randn(3, 2, 8), scale=2.0)["logits"].sum().backward()
    history = watch.history()
    assert {"['logits']", "['aux'][0]", "['aux'][1]['c']"} <= set(history[history["module"] == "(Rich)"]["path"])
    assert "x" in set(history[history["what"] == "input"]["path"])
    assert watch.table()["calls"].to_dict() == {"(Rich)": 1, "a": 2, "rnn": 1, "parts.0": 1, "idle": 0}
    assert watch.note() == "never called: idle"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_calls_twice_and_is_counted_once(reentrant: bool) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with layer_watch.watch(model, "*") as watch:
        for _ in range(2):
            x = torch.randn(4, 8, requires_grad=True)
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
            optimizer.step()
    history = watch.history()
    assert set(history["phase"]) == {"forward", "recompute"} and set(history["step"]) == {0, 1}
    assert set(watch.table()["calls"]) == {1}
    assert watch.table()["grad_std"].notna().all()
    assert not watch.fault


def test_an_exception_leaves_no_hook_and_names_the_way_to_it() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(RuntimeError), layer_watch.watch(model, "*") as watch:
        model(torch.randn(2, 8))
    assert hooks(model) == 0
    assert watch.unfinished == ("(Sequential)", "1", "1.0")
    assert list(watch.table()["calls"]) == [0, 1, 0, 0]


def test_closing_a_generator_and_deleting_the_model_take_the_hooks_off() -> None:
    model = small()

    def watched(model: nn.Module) -> Any:
        with layer_watch.watch(model, "*") as watch:
            yield watch

    generator = watched(model)
    next(generator)
    assert hooks(model) > 0
    generator.close()
    assert hooks(model) == 0
    with layer_watch.watch(model, "*") as watch:
        model(torch.randn(4, 8))
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
    assert len(watch.table()) == 5


def test_autocast_scaler_frozen_parts_and_other_backward_passes() -> None:
    model = small()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[3].parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    with layer_watch.watch(model, "*") as watch:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            scaler.scale(loss).backward(retain_graph=True)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        loss.backward()  # of a step that is over
    table = watch.table()
    assert table.loc["3", "dtype"] == "bfloat16" and table.loc["3", "grad_std"] > 0
    assert math.isnan(table.loc["0", "grad_std"]) and table.loc["0", "calls"] == 1
    assert not watch.fault


def test_the_rows_are_bounded_and_the_first_fault_outlives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocrlab.debug.instruments.layers.statistics.MOST", 40)
    model = small()
    bad = torch.full((4, 8), math.inf)
    with layer_watch.watch(model, "*") as watch:
        train(model, 8, batch=lambda step: bad if step == 1 else torch.randn(4, 8))
    assert len(watch.history()) <= 60
    assert watch.first_nonfinite is not None and watch.first_nonfinite.step == 1
    assert "older rows were dropped" in watch.note()


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="nn.Module"):
        layer_watch.watch(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="whole number"):
        layer_watch.watch(small(), "*", every=0)
    model = small()
    with layer_watch.watch(model, "*") as watch, pytest.raises(ConfigError, match="open already"):
        watch.__enter__()


def test_a_compiled_model_is_looked_at_eagerly_and_compiled_between(capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()  # more than eight compiled modules with hooks, and nothing is compiled any more
    graphs: list[int] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            graphs.append(1)
            return graph.forward(*args)

        return run

    model = torch.compile(small(), backend=backend)
    with layer_watch.watch(model, "*", every=2) as watch:
        train(model, 4)
    assert sorted(set(watch.history()["step"])) == [0, 2] and watch.table()["calls"].eq(1).all()
    assert len(graphs) == 2
    assert "run eagerly" in capsys.readouterr().err
    train(model, 1)
    assert len(graphs) == 3
    assert hooks(model) == 0


def test_inside_a_compiled_function_it_breaks_nothing_and_explains_why_the_table_is_empty(capsys):
    model = small()
    function = torch.compile(lambda x: model(x), backend="eager", fullgraph=True)
    with layer_watch.watch(model, "*") as watch:
        train(function, 2, parameters=model.parameters())
    assert "compiled function" in watch.note() and "compiled function" in capsys.readouterr().err
    assert watch.history().empty and watch.table()["calls"].eq(0).all()


@pytest.mark.parametrize(("which", "names"), [
    ("fusion", ["decoder.fusion"]),
    (nn.ConvTranspose2d, ["head.probability.3", "head.probability.6", "head.threshold.3", "head.threshold.6"]),
    (["decoder.laterals.[01]", "head"], ["decoder.laterals.0", "decoder.laterals.1", "head"]),
])  # fmt: skip
def test_which_modules_are_meant(which: Any, names: list[str]) -> None:
    assert [name for name, _ in layer_watch.watch(Detector(width=16), which).modules] == names


def test_the_module_itself_and_wrapped_models() -> None:
    model = Detector(width=16)
    assert layer_watch.watch(model, model.decoder.fusion).modules == [("decoder.fusion", "Sequential")]
    assert layer_watch.watch(nn.DataParallel(model)).modules == [("decoder.fusion", "Sequential")]
    assert ("(Detector)", "Detector") in layer_watch.watch(torch.compile(model), "*").modules
    assert layer_watch.watch(model, "").modules == [("(Detector)", "Detector")]
    assert layer_watch.watch(nn.LSTM(2, 2), "").modules == [("(LSTM)", "LSTM")]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("decoder.fussion", "decoder.fusion"), ("decoder.laterals", "decoder.laterals.*"),
        (nn.LSTM, "no LSTM"), (nn.Linear(1, 1), "not a module of the model"), (7, "a name, a glob"),
    ],
)  # fmt: skip
def test_unknown_modules_get_the_nearest_right_names(which: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        layer_watch.watch(Detector(width=16), which)
    assert message in str(caught.value)
