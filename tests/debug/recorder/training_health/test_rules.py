"""Reports about the recorded figures, and loops with faults that no single step shows."""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.training_health.batch_contents import BatchContents
from ocrlab.debug.recorder.training_health.rules import TrainingStats, sentences
from tests.debug.recorder.training_health.test_monitor import data, net, report, right

MODEL = nn.Linear(4, 2)


def test_two_steps_are_too_few_for_a_finding() -> None:
    assert sentences(TrainingStats(batches=2, looks=2, steps=0, owned={"weight", "bias"}), MODEL) == []
    assert sentences(TrainingStats(batches=2, looks=2, steps=2, bare=2, owned={"weight", "bias"}), MODEL) == []


def test_a_loader_without_batches_is_reported_with_its_length() -> None:
    text = sentences(TrainingStats(walks=[(0, 0), (0, 0)]), MODEL)
    assert len(text) == 1
    assert "2 walks over the loader gave none (len(loader) is 0)" in text[0]


def test_an_exit_before_the_first_batch_is_the_only_finding() -> None:
    assert sentences(TrainingStats(ended="it ended"), MODEL) == ["it ended"]


def test_a_constant_loss_is_reported() -> None:
    stats = TrainingStats(batches=40, losses=40, steps=40, same=39, last=0.5, first_losses=[0.5] * 8)
    stats.last_losses.extend([0.5] * 8)
    assert sentences(stats, MODEL)[0].startswith("the last 40 losses were 0.5, the same to the last bit")


@pytest.mark.parametrize(
    ("losses", "batch", "named", "omitted"),
    [
        (
            [0.5, 90.0, math.nan], 3,
            ("from batch 3 of 30 on, so it learns nothing more", "smaller learning rate"), "no step",
        ),
        ([0.5, 0.4, math.nan], 3, ("0.4 just before, and had not grown: look at this batch",), "smaller learning"),
        ([math.nan] * 3, 1, ("no optimizer step came before it", "ocrlab replay"), "smaller learning"),
    ],
)  # fmt: skip
def test_the_rate_is_not_to_blame_for_a_first_loss_that_is_not_finite(losses, batch, named, omitted):
    before = losses[batch - 2]
    stats = TrainingStats(30, losses=30, steps=30, last=math.nan, lost=batch, first_losses=losses, before_lost=before)
    stats.last_losses.append(math.nan)
    [text] = [text for text in sentences(stats, MODEL) if "the loss is nan" in text]
    assert all(words in text for words in named) and omitted not in text


def test_a_batch_that_is_not_finite_stands_first_and_its_loss_gets_no_advice() -> None:
    stats = TrainingStats(30, losses=30, steps=30, last=math.nan, lost=9, first_losses=[0.5] * 8, unrated=30)
    stats.last_losses.append(math.nan)
    stats.broken = "batch 9 contains inf (1 of 2 values) in 0"
    text = sentences(stats, MODEL)
    assert text[0].startswith("batch 9 contains inf")
    assert text[-1].endswith("from batch 9 of 30 on, so it learns nothing more: that batch contains NaN or infinity")


def test_targets_in_batches_of_any_form() -> None:
    stats = TrainingStats()
    contents = BatchContents(stats)
    contents.look([("images", torch.rand(4, 3)), ("labels", torch.ones(4))])
    contents.look([("0", torch.rand(4, 3)), ("1", torch.tensor([0.0, 1.0]))])
    contents.look([("images", torch.rand(4, 3)), ("mask", torch.ones(4))])
    assert stats.constant == [1.0, None]
    assert stats.compared == 6
    assert math.isnan(stats.last)


def dropping() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def validated(folder: Path, back: Callable[[nn.Module], Any]) -> str:
    """Train for three epochs with a validation after each, and return what is printed."""
    model = dropping()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with recording(folder, model, optimizer) as rec:
        for _ in rec.epochs(3):
            for batch in rec.batches(DataLoader(data(), 16, shuffle=True)):
                back(model)
                right(model, optimizer, batch, rec)
            model.eval()
    return "\n".join(training_findings.read(folder) or [])


def test_a_model_that_stays_in_eval_mode_after_its_validation(tmp_path: Path) -> None:
    text = validated(tmp_path / "a", lambda model: None)
    assert "8 steps were made in train mode and 16 in eval mode" in text
    assert validated(tmp_path / "b", lambda model: model.train()) == ""


def cleared(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    rec.loss(functional.cross_entropy(model(batch[0]), batch[1])).backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def test_gradients_that_are_filled_with_zeros_before_the_step(tmp_path: Path) -> None:
    text = report(tmp_path, cleared)
    assert "all gradients were 0 when the optimizer stepped" in text
    assert "dead" not in text


def stored_weights(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    right(model, optimizer, batch, rec)
    optimizer.zero_grad(set_to_none=False)


def test_gradients_that_are_filled_with_zeros_after_the_step(tmp_path: Path) -> None:
    assert report(tmp_path, stored_weights) == ""


def stepped_every(number: int, *, clear: bool) -> Callable[..., None]:
    """Return a loop body that steps in every `number`th batch, and clears in each or only after a step."""
    done = [0]

    def body(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        if clear:
            optimizer.zero_grad()
        rec.loss(functional.cross_entropy(model(batch[0]), batch[1])).backward()
        done[0] += 1
        if done[0] % number == 0:
            optimizer.step()
            optimizer.zero_grad()

    return body


def test_gradients_that_are_thrown_away_and_gradients_that_are_collected(tmp_path: Path) -> None:
    loader = DataLoader(data(), 8, shuffle=True)
    text = report(tmp_path / "a", stepped_every(16, clear=True), loader=loader)
    assert "of 32 batches zero_grad() threw a gradient away that no step had used: 2 steps" in text
    assert "threw" not in report(tmp_path / "b", stepped_every(8, clear=False), loader=loader)


class Average:
    """An average of weights that is not a module."""

    def __init__(self, model: nn.Module, share: float) -> None:
        self.weights, self.share = copy.deepcopy(model.state_dict()), share

    def update(self, model: nn.Module) -> None:
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.weights[name].lerp_(value, self.share)

    def state_dict(self) -> dict[str, Tensor]:
        return self.weights

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.weights = state


class Scale:
    """Something beside the training that is not meant to move."""

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": torch.zeros(3), "std": torch.ones(3)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


@pytest.mark.parametrize(("share", "reported"), [(0.0, "average never changed"), (0.1, "")])
def test_an_average_with_a_state_that_stands_still(tmp_path: Path, share: float, reported: str) -> None:
    model = net()
    average = Average(model, share)

    def body(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        right(model, optimizer, batch, rec)
        average.update(model)

    text = report(tmp_path, body, model=model, extra={"average": average, "scale": Scale()})
    assert text.startswith(reported) and bool(text) == bool(reported)


def tenths(step: int) -> float:
    return 0.1 ** min(step, 4)


@pytest.mark.parametrize(("factor", "rate", "words"), [
    (lambda step: max(0.0, 1 - step / 8), 1e-2, "learning rate was 0 in the last 120 of 128 steps"),
    (lambda step: 0.5**step, 1e-2, "below a millionth of its largest (0.01) in"),
    (tenths, 0.1, "below a thousandth of its largest (0.1) in"),
    (lambda step: min(1.0, (step + 1) / 5000), 1.0, "still rising when the training ended, at 0.0256 of 1:"),
    (lambda step: min(1.0, (step + 1) / 100), 1e-2, ""),
    (lambda step: 0.5 + 0.5 * np.cos(np.pi * step / 128), 1e-2, ""),
], ids=["ends early", "vanishes", "falls by tenths", "never arrives", "warms up", "cosine"])  # fmt: skip
def test_rates_that_vanish_or_never_arrive_and_rates_that_do(tmp_path, factor, rate, words):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def body(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        right(model, optimizer, batch, rec)
        schedule.step()

    loader = DataLoader(data(), 2, shuffle=True)
    text = report(tmp_path, body, model=model, optimizer=optimizer, loader=loader)
    assert words in text and bool(text) == bool(words)


class Seeded(Dataset[Any]):
    """Samples that are drawn by the worker, whatever the index."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        values = torch.from_numpy(np.random.normal(size=8)).float()  # noqa: NPY002
        return values, int(values[:4].argmax())


def same_seed(_worker: int) -> None:
    np.random.seed(0)  # noqa: NPY002


def own_seed(worker: int) -> None:
    np.random.seed(worker)  # noqa: NPY002


class Copied(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield from ((row, int(kind)) for row, kind in data())


def test_workers_that_draw_the_same(tmp_path: Path) -> None:
    for number, (init, wrong) in enumerate(((same_seed, True), (own_seed, False))):
        loader = DataLoader(Seeded(), 8, num_workers=2, worker_init_fn=init)
        assert (
            "2 workers of the loader gave the same batches" in report(tmp_path / f"{number}", loader=loader)
        ) == wrong
    assert "gave the same batches" in report(tmp_path / "c", loader=DataLoader(Copied(), 8, num_workers=2))


class Listed(nn.Module):
    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.parts = {"first": nn.Linear(8, 8).requires_grad_(not frozen)}
        self.last = nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.parts["first"](inputs))  # type: ignore[no-any-return]


def test_modules_in_a_plain_dict(tmp_path: Path) -> None:
    assert "parts: 2 tensors get a gradient and are in no" in report(tmp_path / "a", model=Listed(frozen=False))
    assert report(tmp_path / "b", model=Listed(frozen=True)) == ""


def test_no_finding_for_a_loss_of_zero_or_of_two_players(tmp_path: Path) -> None:
    def done(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        optimizer.zero_grad()
        (functional.relu(model(batch[0]) - 0.1).sum() * 0 + rec.loss(next(losses) * model(batch[0]).sum())).backward()
        optimizer.step()

    losses = iter([1.0] * 8 + [0.0] * 56)
    assert "to the last bit" not in report(tmp_path / "a", done, loader=DataLoader(data(), 4))
    losses = iter([0.0] * 64)
    assert "to the last bit" in report(tmp_path / "b", done, loader=DataLoader(data(), 4))
