"""Trainings that end without an error and learn nothing are reported; trainings that learn are not."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.recorder.loop_recorder import recording

Step = Callable[[nn.Module, Any, Any, Any], Any]


def data(classes: int = 4) -> TensorDataset:
    inputs = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :classes].argmax(1))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def right(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    optimizer.zero_grad()
    rec.loss(functional.cross_entropy(model(batch[0]), batch[1])).backward()
    optimizer.step()


def report(folder: Path, step: Step = right, *, model: Any = None, optimizer: Any = None, **options: Any) -> str:
    """Train for two epochs and return the report."""
    model = net() if model is None else model
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = options.pop("loader", None)
    loader = DataLoader(data(), 16, shuffle=True) if loader is None else loader  # an empty one is false
    with recording(folder, model, optimizer, **options) as rec:
        for _ in rec.epochs(2):
            for batch in rec.batches(loader):
                step(model, optimizer, batch, rec)
    return "\n".join(training_findings.read(folder) or [])


def test_a_training_that_learns_has_no_findings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path) == ""
    assert training_findings.read(tmp_path) == []
    assert "flight recorder" not in capfd.readouterr().err


def never(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    rec.loss(functional.cross_entropy(model(batch[0]), batch[1])).backward()


def stale(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    rec.loss(functional.cross_entropy(model(batch[0]), batch[1])).backward()
    optimizer.step()


def between(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    rec.loss(functional.cross_entropy(model(batch[0]), batch[1])).backward()
    optimizer.zero_grad()
    optimizer.step()


def swallowed(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    try:
        right(model, optimizer, (batch[0].long(), batch[1]), rec)
    except RuntimeError:
        return


def clipped(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    optimizer.zero_grad()
    rec.loss(functional.cross_entropy(model(batch[0]), batch[1])).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-9)
    optimizer.step()


def evaluating(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    model.eval()
    right(model, optimizer, batch, rec)


def validating(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
    right(model, optimizer, batch, rec)
    with rec.validating(), torch.no_grad():
        model(batch[0])


@pytest.mark.parametrize(("step", "words"), [
    (never, "no optimizer step was made in 16 batches (backward() has left gradients)"),
    (stale, "gradients are never set to zero: in 6 of 6 inspected steps"),
    (between, "none of 16 optimizer steps found a gradient"),
    (swallowed, "16 batches were taken and none was trained on"),
    (evaluating, "the model: eval mode, in all"),
    (validating, "train mode in 16 validation batches"),
])  # fmt: skip
def test_a_step_in_the_wrong_order_is_named(tmp_path: Path, step: Step, words: str) -> None:
    text = report(tmp_path, step)
    assert words in text
    assert "\n" not in text


def test_steps_that_change_nothing(tmp_path: Path) -> None:
    model = net()
    text = report(tmp_path / "a", clipped, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert "steps change" in text and "gradient clipping" in text
    text = report(tmp_path / "b", model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    assert "learning rate was 0 in all 16 steps" in text


def test_parameters_that_nothing_moves_are_named(tmp_path: Path) -> None:
    model = net()
    text = report(tmp_path / "a", model=model, optimizer=torch.optim.Adam(model[3].parameters(), lr=1e-2))
    assert text.startswith("0 (2 parameters), 1 (2 parameters): trainable, and in no group")

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(inputs).detach())

    assert report(tmp_path / "b", model=Cut()).startswith("body (2 parameters): no gradient in")


def test_gradients_that_are_not_finite_and_a_scaler_that_skips(tmp_path: Path) -> None:
    model, scaler = net(), torch.amp.GradScaler("cpu")
    model.gate = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(model: Any, optimizer: Any, batch: Any, rec: Any) -> None:
        optimizer.zero_grad()
        outputs = nn.Sequential.forward(nn.Sequential(*list(model)), batch[0])
        loss = rec.loss(functional.cross_entropy(outputs, batch[1]) + model.gate.square().sqrt().sum())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    text = report(tmp_path, step, model=model, optimizer=optimizer, scaler=scaler)
    assert "the gradient of gate is not finite, and GradScaler skips" in text


def test_a_loss_that_rises_or_is_no_number(tmp_path: Path) -> None:
    model = net()
    text = report(tmp_path / "a", model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e25))
    assert "from batch" in text and "on, so it learns nothing more" in text
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0, maximize=True)
    assert "the loss rose from" in report(tmp_path / "b", model=model, optimizer=optimizer)


def test_batches_that_hold_nothing_to_learn(tmp_path: Path) -> None:
    inputs, targets = data().tensors
    order, broken = targets.argsort(), inputs.clone()
    broken[5] = torch.nan
    cases = {
        "every target was 0": DataLoader(TensorDataset(inputs, targets * 0), 16),
        "sorted and not shuffled": DataLoader(
            TensorDataset(inputs[order].repeat_interleave(4, 0), targets[order].repeat_interleave(4)), 16
        ),
        "is exactly 0 in all": DataLoader(TensorDataset(inputs * 0, targets), 16),
        "batch 1 contains nan (8 of 128 values) in batch[0], sample 5": DataLoader(TensorDataset(broken, targets), 16),
        "no batch was trained on": DataLoader(TensorDataset(inputs[:8], targets[:8]), 16, drop_last=True),
        "all 16 samples of a batch were the same": DataLoader(TensorDataset(inputs[:1].repeat(128, 1), targets), 16),
    }
    for number, (words, loader) in enumerate(cases.items()):
        assert words in report(tmp_path / str(number), loader=loader), words


class Augmented(TensorDataset):
    def __init__(self) -> None:
        super().__init__(*data().tensors)
        self.rng = np.random.default_rng(0)


def test_a_generator_that_every_worker_copies(tmp_path: Path) -> None:
    loader = DataLoader(Augmented(), 16, shuffle=True, num_workers=1)
    assert "a generator of its own (rng)" in report(tmp_path / "a", loader=loader)
    loader = DataLoader(Augmented(), 16, shuffle=True, num_workers=1, worker_init_fn=lambda _: None)
    assert report(tmp_path / "b", loader=loader) == ""


def test_another_model_and_a_decay_that_eats_the_weights(tmp_path: Path) -> None:
    assert report(tmp_path / "a", optimizer=torch.optim.Adam(net().parameters())).startswith("the optimizer holds none")
    model = net()
    decayed = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=100.0)
    assert "takes 10.0% of the weights away" in report(tmp_path / "b", model=model, optimizer=decayed)


def test_pages_without_text_may_be_all_of_a_small_batch(tmp_path: Path) -> None:
    inputs, targets = data().tensors
    assert report(tmp_path, loader=DataLoader(TensorDataset(inputs[:24], targets[:24] * 0), 4)) == ""


def test_the_same_batch_is_named_where_the_loader_has_more(tmp_path: Path) -> None:
    model, loader = net(), DataLoader(data(), 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with recording(tmp_path / "a", model, optimizer) as rec:
        for _ in range(12):
            right(model, optimizer, next(iter(rec.batches(loader))), rec)
    findings = "\n".join(training_findings.read(tmp_path / "a") or [])
    assert "the same batch, to the last bit" in findings
    assert "12 walks over the loader was left after its first batch, of 8" in findings
    only = [next(iter(loader))] * 12
    assert report(tmp_path / "b", loader=only) == "", "overfitted on purpose"


def test_averaged_weights_that_are_never_updated(tmp_path: Path) -> None:
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)
    assert report(tmp_path / "a", model=model, extra={"ema": average}).startswith("ema never changed")

    def step(*args: Any) -> None:
        right(*args)
        average.update_parameters(model)

    assert report(tmp_path / "b", step, model=model, extra={"ema": average}) == ""


def test_a_backward_that_reaches_two_networks(tmp_path: Path) -> None:
    """As GANs are written: the generator's backward adds to the critic's gradients, which are zeroed later."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    first, second = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
    with recording(tmp_path, [generator, critic], [first, second]) as rec:
        for batch in rec.batches(DataLoader(data(), 8, shuffle=True)):
            fake = generator(torch.randn(8, 4))
            second.zero_grad()
            (critic(fake.detach()).mean() - critic(batch[0]).mean()).backward()
            second.step()
            first.zero_grad()
            rec.loss(-critic(fake).mean()).backward()
            first.step()
    assert training_findings.read(tmp_path) == []


def test_a_closure_has_its_gradients_inside_of_the_step(tmp_path: Path) -> None:
    def step(model: Any, optimizer: Any, batch: Any, rec: Any) -> None:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = rec.loss(functional.cross_entropy(model(batch[0]), batch[1]))
            loss.backward()
            return loss

        optimizer.step(closure)

    assert report(tmp_path, step) == ""


def test_an_exit_in_the_middle_is_reported(tmp_path: Path) -> None:
    def step(model: Any, optimizer: Any, batch: Any, rec: Any) -> None:
        right(model, optimizer, batch, rec)
        if rec.micro == 10:
            sys.exit(0)

    with pytest.raises(SystemExit):
        report(tmp_path, step)
    findings = (training_findings.read(tmp_path) or [""])[0]
    assert "ended the program in batch 3 of 8 of epoch 2 of 2" in findings
    assert "test_monitor.py:" in findings
    assert training_findings.ended_early(tmp_path)
