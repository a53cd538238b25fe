"""Laws of a whole training, by recorded loops: accumulation, copies that move, whole batches, sets that overlap."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import ocrlab
from ocrlab.debug.flight_record import training_findings
from tests.debug.recorder.training_health.test_monitor import data, net, report, right


@pytest.mark.parametrize("exact", [False, True])
def test_means_of_means_over_unequal_counts(tmp_path: Path, exact: bool) -> None:
    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        for part in (slice(0, 2), slice(2, 16)):
            total = functional.cross_entropy(model(batch[0])[part], batch[1][part], reduction="sum")
            rec.loss(total / (16 if exact else 2 * (part.stop - part.start))).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert ("mean of means" in report(tmp_path, step)) is not exact


class Twins(nn.Module):
    def __init__(self, name: str, frozen: bool) -> None:
        super().__init__()
        self.online = net()
        setattr(self, name, copy.deepcopy(self.online).requires_grad_(not frozen))
        self.other = name

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            base = getattr(self, self.other)(x)
        return self.online(x) + 0.1 * base


@pytest.mark.parametrize(("name", "frozen", "update", "named"), [
    ("target_net", True, False, True),
    ("copied", False, False, True),
    ("target_net", False, True, False),  # moved by assignment, in no optimizer
    ("ref_model", False, False, False),  # a reference is to stand still
    ("frozen_copy", True, False, False),
])  # fmt: skip
def test_a_target_network_that_stands_still(tmp_path: Path, name: str, frozen: bool, update: bool, named: bool) -> None:
    model = Twins(name, frozen)
    optimizer = torch.optim.Adam(model.online.parameters(), lr=1e-2)

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        right(model, optimizer, batch, rec)
        source = model.online if update else getattr(model, name)
        getattr(model, name).load_state_dict(source.state_dict())

    findings = report(tmp_path, step, model=model, optimizer=optimizer, loader=DataLoader(data(), 4))
    assert ("was never updated" in findings) is named
    assert update is False or findings == ""


@pytest.mark.parametrize("leak", [0, 40, 128])
def test_validation_samples_that_were_trained_on(tmp_path: Path, leak: int) -> None:
    train, fresh = data(), torch.randn(128, 8, generator=torch.Generator().manual_seed(9))
    rows = torch.cat([train.tensors[0][:leak], fresh[leak:]])
    model, optimizer = net(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with ocrlab.record(tmp_path, model, optimizer) as rec:
        for _ in rec.epochs(3):
            for batch in rec.batches(DataLoader(train, 16, shuffle=True)):
                right(model, optimizer, batch, rec)
            model.eval()
            with torch.no_grad():
                model(rows)
            model.train()
    findings = "\n".join(training_findings.read(tmp_path) or [])
    assert ("40 of 128 validation samples" in findings) is (leak == 40)  # 128: an evaluation of the training set
    assert leak == 40 or "validation" not in findings


@pytest.mark.parametrize("leak", [0, 40])
def test_validation_pages_with_a_white_margin(tmp_path: Path, leak: int) -> None:
    pages = torch.ones(256, 1, 64, 64)
    pages[..., 4:] = torch.rand(256, 1, 64, 60, generator=torch.Generator().manual_seed(2))
    train, fresh = (half.to(memory_format=torch.channels_last) for half in pages.split(128))
    model = nn.Sequential(nn.Flatten(), nn.Linear(4096, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with ocrlab.record(tmp_path, model, optimizer) as rec:
        for batch in rec.batches(DataLoader(TensorDataset(train, torch.arange(128) % 4), 16)):
            right(model, optimizer, batch, rec)
        model.eval()
        with torch.no_grad():
            model(torch.cat([train[:leak], fresh[leak:]]))
    findings = "\n".join(training_findings.read(tmp_path) or [])
    assert (f"{leak} of 128 validation samples" in findings) is (leak > 0)


def test_a_collate_function_that_drops_samples(tmp_path: Path) -> None:
    images = TensorDataset(torch.rand(40, 1, 2, 4), torch.arange(40) % 4)
    model = nn.Sequential(nn.Flatten(), net())
    first = lambda items: (items[0][0][None], torch.tensor([items[0][1]]))  # noqa: E731
    model.eval()
    assert "a batch has 1 sample, and the loader draws 10" in report(
        tmp_path / "a", model=model, loader=DataLoader(images, 10, collate_fn=first)
    )
    assert "draws" not in report(
        tmp_path / "b", model=nn.Sequential(nn.Flatten(), net()), loader=DataLoader(images, 10)
    )


def test_an_evaluation_before_spectral_norm_has_run(tmp_path: Path) -> None:
    def train(folder: Path, ready: bool) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 64)), nn.ReLU(), nn.Linear(64, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(20 * ready):
            model(torch.randn(4, 8))
        with ocrlab.record(folder, model, optimizer) as rec:
            for _ in rec.epochs(2):
                model.eval()
                with torch.no_grad():
                    model(torch.randn(4, 8))
                model.train()
                for batch in rec.batches(DataLoader(data(), 16)):
                    right(model, optimizer, batch, rec)
        return "\n".join(training_findings.read(folder) or [])

    assert "power iteration" in train(tmp_path / "a", False)
    assert "power iteration" not in train(tmp_path / "b", True)


def test_a_training_that_goes_on_without_the_state_of_its_optimizer(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 40})
    assert "has counted 40 updates" in report(tmp_path, model=model, optimizer=optimizer)


def test_a_training_that_goes_on_without_the_state_of_its_scheduler(tmp_path: Path) -> None:
    for name, loaded in (("a", False), ("b", True)):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        for batch in DataLoader(data(), 16):
            functional.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
            scheduler.step() if loaded else None
        text = report(tmp_path / name, model=model, optimizer=optimizer)
        assert ("and the scheduler none" in text) is not loaded


@pytest.mark.parametrize(
    ("length", "every", "text"), [(4, 1, "fell and rose"), (400, 16, "hardly any of its schedule"), (64, 1, "")]
)
def test_a_schedule_that_was_planned_for_other_steps(tmp_path: Path, length: int, every: int, text: str) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length)
    count = 0

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        nonlocal count
        right(model, optimizer, batch, rec)
        count += 1
        if count % every == 0:
            scheduler.step()

    findings = report(tmp_path, step, model=model, optimizer=optimizer, loader=DataLoader(data(), 4))
    assert text in findings and (text or not findings)


@pytest.mark.parametrize("away", [False, True])
def test_an_average_that_moves_away(tmp_path: Path, away: bool) -> None:
    model = Twins("ema", True)
    optimizer = torch.optim.Adam(model.online.parameters(), lr=1e-2)

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        right(model, optimizer, batch, rec)
        with torch.no_grad():
            for old, new in zip(model.ema.parameters(), model.online.parameters(), strict=True):
                old += 0.1 * (old - new if away else new - old)

    findings = report(tmp_path, step, model=model, optimizer=optimizer, loader=DataLoader(data(), 4))
    assert ("follows online the wrong way" in findings) is away
    assert away or findings == ""


@pytest.mark.parametrize("twice", [False, True])
def test_gradients_of_a_first_backward_that_are_cleared(tmp_path: Path, twice: bool) -> None:
    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(batch[0][:8]), batch[1][:8]).backward()
        if twice:
            optimizer.zero_grad()
        rec.loss(functional.cross_entropy(model(batch[0][8:]), batch[1][8:])).backward()
        optimizer.step()

    assert ("between two backward passes of one step" in report(tmp_path, step)) is twice


class Averaged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.ema = copy.deepcopy(self.online).requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.online(x)


@pytest.mark.parametrize("buffers", [False, True])
def test_an_average_that_lacks_the_statistics_of_its_norms(tmp_path: Path, buffers: bool) -> None:
    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        right(model, optimizer, batch, rec)
        owner: Any = model
        for own, p in zip(owner.ema.parameters(), owner.online.parameters(), strict=True):
            own.data.lerp_(p.data, 0.1)
        if buffers:
            owner.ema[1].load_state_dict(owner.online[1].state_dict() | dict(owner.ema[1].named_parameters()))

    model = Averaged()
    optimizer = torch.optim.Adam(model.online.parameters(), lr=1e-2)
    text = report(tmp_path, step, model=model, optimizer=optimizer, loader=DataLoader(data(), 4))
    assert ("its BatchNorm statistics (1) are still those of the start" in text) is not buffers


@pytest.mark.parametrize("kind", ["cleared", "moved between", "other batch"])
def test_gradients_between_which_weights_or_batches_change_are_used(tmp_path: Path, kind: str) -> None:
    count = 0

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        nonlocal count
        count += 1
        if kind == "other batch" and count % 2:
            functional.cross_entropy(model(batch[0]), batch[1]).backward()  # of another player
            return
        if kind != "other batch":
            functional.cross_entropy(model(batch[0]), batch[1]).backward()
        with torch.no_grad():
            for p in model.parameters() if kind == "moved between" else ():
                p += 0.01 * p.grad  # sharpness-aware: up the hill first
        optimizer.zero_grad()
        rec.loss(functional.cross_entropy(model(batch[0]), batch[1])).backward()
        optimizer.step()

    assert ("between two backward passes" in report(tmp_path, step)) is (kind == "cleared")


@pytest.mark.parametrize("decay", [0.5, 0.98])
def test_an_average_that_holds_the_last_steps_only(tmp_path: Path, decay: float) -> None:
    model = net()
    average = copy.deepcopy(model).requires_grad_(False)

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        right(model, optimizer, batch, rec)
        for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast.detach(), 1 - decay)

    findings = report(tmp_path, step, model=model, extra={"ema": average}, loader=DataLoader(data(), 2))
    assert ("takes 50% of the weights in each step" in findings) is (decay == 0.5)


@pytest.mark.parametrize("planned", [32, 128])
def test_a_schedule_that_counts_micro_batches(tmp_path: Path, planned: int) -> None:
    model, count = net(), 0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / planned))

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        nonlocal count
        rec.loss(functional.cross_entropy(model(batch[0]), batch[1]) / 4).backward()
        count += 1
        if count % 4 == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    findings = report(tmp_path, step, model=model, optimizer=optimizer, loader=DataLoader(data(), 2))
    assert ("as many as there were micro-batches (128)" in findings) is (planned == 128)


@pytest.mark.parametrize(("divided", "kind"), [(False, "SGD"), (True, "SGD"), (False, "AdamW")])
def test_accumulated_losses_that_are_not_divided(tmp_path: Path, divided: bool, kind: str) -> None:
    model, count = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), 0
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3)
    ocrlab.check_step(model, data()[:8], lambda m, b: functional.cross_entropy(m(b[0]), b[1]), optimizer)

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        nonlocal count
        rec.loss(functional.cross_entropy(model(batch[0]), batch[1]) / (4 if divided else 1)).backward()
        count += 1
        if count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

    findings = report(tmp_path, step, model=model, optimizer=optimizer, loader=DataLoader(data(), 2))
    assert ("are accumulated and not divided" in findings) is (kind == "SGD" and not divided)


def test_a_fixed_teacher_and_parameters_of_another_optimizer(tmp_path: Path) -> None:
    model, teacher = nn.ModuleDict({"a": net(), "b": nn.Linear(8, 4)}), net().requires_grad_(False)
    first, other = (torch.optim.Adam(model[key].parameters(), lr=1e-2) for key in "ab")

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        rec.loss(functional.cross_entropy(model["a"](batch[0]) + model["b"](batch[0]), batch[1])).backward()
        for each in (first, other):
            each.step()
            each.zero_grad()

    findings = report(tmp_path, step, model=model, optimizer=first, extra={"teacher": teacher, "other": other})
    assert findings == "", findings


def test_an_average_whose_decay_grows_is_right(tmp_path: Path) -> None:
    model, count = net(), 0
    average = copy.deepcopy(model).requires_grad_(False)

    def step(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        nonlocal count
        right(model, optimizer, batch, rec)
        count += 1
        decay = 0.9999 * (1 - 2.718 ** (-count / 400))
        for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast.detach(), 1 - decay)

    assert "in each step" not in report(
        tmp_path, step, model=model, extra={"ema": average}, loader=DataLoader(data(), 2)
    )
