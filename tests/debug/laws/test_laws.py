"""The laws of a training step: each one broken by a small program, and held by the same program without the fault."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

import ocrlab

VOCABULARY, LENGTH = 23, 12


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))


def points(n: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def classes(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def line(report: Any, law: str) -> str:
    return next(text for text in str(report).splitlines() if text.partition("] ")[2].startswith(f"{law}:"))


class Text(nn.Module):
    """A small causal language model; `mixing` lets a token see the later ones."""

    def __init__(self, *, mixing: bool = False, blocks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.mixing, self.blocks = mixing, blocks

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        n = ids.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool) if self.mixing else torch.ones(n, n, dtype=torch.bool).tril()
        if self.blocks:
            part = (ids == 0).cumsum(1) - (ids == 0).long()
            mask = mask & (part[:, :, None] == part[:, None, :])
        return self.head(x + functional.scaled_dot_product_attention(x, x, x, attn_mask=mask.expand(len(ids), n, n)))


def tokens(n: int = 8) -> Tensor:
    return torch.randint(1, VOCABULARY, (n, LENGTH), generator=torch.Generator().manual_seed(2))


def following(shift: int) -> Callable[[nn.Module, Tensor], Tensor]:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids)[:, : LENGTH - shift]
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, shift:].flatten())

    return loss


def test_a_healthy_step_holds_all_laws_and_is_undone() -> None:
    model, data = net(), TensorDataset(*points(64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))  # begins at 0
    loader = DataLoader(data, batch_size=16, shuffle=True)
    batch = next(iter(loader))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict())), torch.get_rng_state()
    report = ocrlab.check_step(model, batch, classes, optimizer, loader=loader, scheduler=scheduler)
    assert report.ok and not report.findings, str(report)
    assert all(text.startswith(("[ok]", "[skip]")) for text in str(report).splitlines())
    after = (model.state_dict(), optimizer.state_dict(), scheduler.state_dict()), torch.get_rng_state()
    assert str(before) == str(after) and model.training and report.loss == pytest.approx(1.1, abs=0.2)


def test_broken_laws_come_first_and_without_time_they_are_named() -> None:
    model = Text(mixing=True)
    report = ocrlab.check_step(model, tokens(), following(1), torch.optim.SGD(model.parameters(), 0.1))
    assert str(report).startswith("[fail] sequences: ") and not report.ok
    assert {f.judgement for f in report.findings} == {"fail"} and len(report.table()) == len(report.findings)
    report = ocrlab.check_step(net(), points(), classes, seconds=0)
    assert "skipped for time" in line(report, "progress")


def test_a_loss_whose_reference_is_the_model_itself() -> None:
    def loss(model: nn.Module, batch: Any, reference: nn.Module | None = None) -> Tensor:
        with torch.no_grad():
            base = (reference or model)(batch[0])
        return -functional.logsigmoid((model(batch[0]) - base) @ torch.tensor([1.0, -1.0])).mean()

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    assert line(ocrlab.check_step(model, points(), loss), "progress").startswith("[fail]")
    frozen = copy.deepcopy(model).requires_grad_(False)
    assert line(ocrlab.check_step(model, points(), lambda m, b: loss(m, b, frozen)), "progress").startswith("[ok]")


def test_a_frozen_head_at_its_random_start_and_a_parameter_in_two_groups() -> None:
    model = net()
    model[3].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    assert "last layer is frozen" in line(ocrlab.check_step(model, points(), classes, optimizer), "coverage")
    model = net()
    both = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(model[3].parameters(), 0.1)]
    assert "2 groups hold it" in line(ocrlab.check_step(model, points(), classes, both), "coverage")


def test_weights_that_are_drawn_again_after_loading() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
    model = nn.Sequential(nn.Linear(8, 32), *layers, nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        classes(model, points()).backward()
        optimizer.step()
    assert line(ocrlab.check_step(model, points(), classes), "coverage").startswith("[ok]")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.02)
    assert "fresh random draws" in line(ocrlab.check_step(model, points(), classes), "coverage")


def test_samples_that_influence_each_other() -> None:
    class Mixed(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.layer, self.dim = nn.Conv2d(3, 4, 3), dim

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x).mean((2, 3))
            return h.softmax(self.dim) * h

    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(3)), torch.arange(6) % 4
    assert line(ocrlab.check_step(Mixed(0), images, classes), "independence").startswith("[fail]")
    assert line(ocrlab.check_step(Mixed(1), images, classes), "independence").startswith("[ok]")


@pytest.mark.parametrize(
    ("mixing", "shift", "text"), [(True, 1, "later token"), (False, 2, "offset of 2"), (False, 1, "")]
)
def test_later_tokens_and_the_offset_of_targets(mixing: bool, shift: int, text: str) -> None:
    result = line(ocrlab.check_step(Text(mixing=mixing), tokens(), following(shift)), "sequences")
    assert text in result and result.startswith("[fail]" if text else "[ok]")


@pytest.mark.parametrize("blocks", [False, True])
def test_packed_samples(blocks: bool) -> None:
    class Packed(Dataset[Tensor]):
        samples = tuple([1 + (i * k) % 21 for k in range(1, 3 + i % 3)] for i in range(1, 40))

        def __init__(self) -> None:
            self.pool = [list(sample) for sample in self.samples if len(sample) > 2]

        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Tensor:
            joined = [token for sample in self.pool[index : index + 5] for token in [*sample, 0]]
            return torch.tensor(joined[:LENGTH])

    loader = DataLoader(Packed(), batch_size=8)
    report = ocrlab.check_step(Text(blocks=blocks), next(iter(loader)), following(1), loader=loader)
    assert line(report, "sequences").startswith("[ok]" if blocks else "[fail]"), str(report)


def test_padding_that_the_mask_does_not_hide() -> None:
    class Masked(nn.Module):
        def __init__(self, use: bool) -> None:
            super().__init__()
            self.embed, self.head, self.use = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY), use

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            x = self.embed(ids)
            keys = mask[:, None, :].bool() if self.use else None
            return self.head(x + functional.scaled_dot_product_attention(x, x, x, attn_mask=keys))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        out = model(batch["ids"], batch["attention_mask"])
        return functional.cross_entropy(out.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)

    mask = (torch.arange(LENGTH) < torch.tensor([[5], [8], [12], [6]])).long()
    ids = tokens(4) * mask
    batch = {"ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, (ids * 7) % VOCABULARY, -100)}
    assert line(ocrlab.check_step(Masked(False), batch, loss), "sequences").startswith("[fail]")
    assert not line(ocrlab.check_step(Masked(True), batch, loss), "sequences").startswith("[fail]")


def test_activations_that_are_lost_and_noise_that_is_meant() -> None:
    class Transfer(nn.Module):
        def __init__(self, lose: bool) -> None:
            super().__init__()
            self.first, self.lose, self.gen = nn.Linear(8, 64), lose, torch.Generator().manual_seed(5)
            self.wire = nn.Identity()
            self.wire.forward = self.carry  # type: ignore[method-assign]
            self.last = nn.Linear(64, 3)

        def carry(self, x: Tensor) -> Tensor:
            noise = torch.rand(x.shape, generator=self.gen)
            return x * (noise > 0.05) if self.lose else x + 1e-3 * noise

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.wire(self.first(x)))

    assert "activations are 0" in line(ocrlab.check_step(Transfer(True), points(), classes), "mode")
    assert line(ocrlab.check_step(Transfer(False), points(), classes), "mode").startswith("[ok]")


def test_checkpointed_layers_that_get_no_gradient() -> None:
    class Model(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.inner, self.head, self.reentrant = nn.Linear(8, 8), nn.Linear(8, 3), reentrant

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.inner, x, use_reentrant=self.reentrant))

    assert "use_reentrant=False" in line(ocrlab.check_step(Model(True), points(), classes), "transformations")
    assert "(1 segments) changes no gradient" in line(
        ocrlab.check_step(Model(False), points(), classes), "transformations"
    )


def test_an_optimizer_without_state_in_the_middle_of_a_schedule() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 40, "_step_count": 41})
    report = ocrlab.check_step(model, points(), classes, optimizer)
    assert "has counted 40 updates" in line(report, "resume")
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    assert line(ocrlab.check_step(model, points(), classes, sgd), "resume").startswith("[ok]")


def test_a_state_that_a_new_model_lacks() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(8, 3), torch.rand(3)  # drawn anew in each model, and not saved

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    report = ocrlab.check_step(Scaled(), points(), classes, factory=Scaled)
    assert "loaded into a new model" in line(report, "resume")


class Fields(Dataset[tuple[Tensor, Tensor]]):
    """Masks of three classes that are resized; `spoil` divides the stored image at each reading."""

    def __init__(self, mode: str, spoil: bool = False) -> None:
        self.mode, self.spoil = mode, spoil
        self.masks = [((torch.arange(8) + i) // 3 % 3).float().expand(8, 8) for i in range(12)]
        self.images = [torch.rand(3, 16, 16) + 1 for _ in range(12)]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.spoil:
            self.images[index] /= 2
        mask = functional.interpolate(self.masks[index][None, None], size=(16, 16), mode=self.mode)
        return self.images[index], mask[0, 0].round().long()


@pytest.mark.parametrize(
    ("data", "text"),
    [(Fields("bilinear"), "bilinear interpolation"), (Fields("nearest", True), "read again"), (Fields("nearest"), "")],
)
def test_labels_and_items_of_a_data_set(data: Fields, text: str) -> None:
    loader = DataLoader(data, batch_size=4)
    report = ocrlab.check_step(nn.Conv2d(3, 3, 3, padding=1), next(iter(loader)), classes, loader=loader)
    assert text in line(report, "data") and line(report, "data").startswith("[fail]" if text else "[ok]")


def test_batches_that_lose_samples_and_sets_that_overlap() -> None:
    images = TensorDataset(torch.rand(40, 3, 4, 4), torch.arange(40) % 3)

    def first_only(items: list[Any]) -> tuple[Tensor, Tensor]:
        return items[0][0][None], torch.tensor([items[0][1]])

    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    for collate, text in ((first_only, "draws 20 for it"), (None, "")):
        loader = DataLoader(images, batch_size=20, collate_fn=collate)
        result = line(ocrlab.check_step(model, next(iter(loader)), classes, loader=loader), "data")
        assert text in result and result.startswith("[fail]" if text else "[ok]")
    assert not ocrlab.check_step(model, images[:4], classes).findings, "a loader that is not given may be another's"
    train = DataLoader(TensorDataset(*images[:30]), batch_size=10)
    for start, text in ((25, "5 of 15 validation samples"), (30, "")):
        valid = DataLoader(TensorDataset(*images[start:40]), batch_size=10)
        report = ocrlab.check_step(model, next(iter(train)), classes, loader=train, val_loader=valid)
        assert text in line(report, "data") and line(report, "data").startswith("[fail]" if text else "[ok]")


@pytest.mark.parametrize("masked", [True, False])
def test_texts_whose_end_is_never_learned(masked: bool) -> None:
    mask = (torch.arange(LENGTH) < torch.tensor([[5], [8], [7], [6]])).long()
    ids = tokens(4) * mask
    ends = (torch.arange(LENGTH) == mask.sum(1, keepdim=True) - 1) & masked
    labels = torch.where((mask == 1) & ~ends, ids, -100)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["ids"])[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100)

    result = line(ocrlab.check_step(Text(), {"ids": ids, "attention_mask": mask, "labels": labels}, loss), "data")
    assert ("the end of a text" in result) is masked


def test_inputs_and_targets_in_other_orders() -> None:
    def loss(model: nn.Module, batch: Any, both: bool) -> Tensor:
        order = torch.randperm(16)
        return functional.cross_entropy(model(batch[0][order]), batch[1][order] if both else batch[1])

    images = torch.randn(16, 3, 6, 6), torch.arange(16) % 5
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 5))
    assert "its target acts on row" in str(ocrlab.check_step(model, images, lambda m, b: loss(m, b, False)))
    assert ocrlab.check_step(model, images, lambda m, b: loss(m, b, True)).ok


def test_a_target_that_is_a_column_of_the_input() -> None:
    features, wanted = torch.randn(16, 5), torch.randn(16)
    model = nn.Linear(5, 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.mse_loss(model(batch[0]).squeeze(1), batch[1])

    leak = torch.cat([features[:, :4], wanted[:, None]], 1)
    assert "value 4 of batch.0 is batch.1" in line(ocrlab.check_step(model, (leak, wanted), loss), "data")
    assert ocrlab.check_step(model, (features, wanted), loss).ok


def test_dropout_in_eval_mode_and_outputs_that_are_all_the_same() -> None:
    class Model(nn.Module):
        def __init__(self, training: bool, dim: int = 1) -> None:
            super().__init__()
            self.first, self.last, self.always, self.dim = nn.Linear(8, 16), nn.Linear(16, 3), training, dim

        def forward(self, x: Tensor) -> Tensor:
            h = functional.dropout(self.first(x), 0.3, training=self.always or self.training)
            return self.last(h if self.dim == 1 else (h[:, :, None] * 0 + h[:, :, None].softmax(self.dim))[:, :, 0])

    assert "drops values in eval mode" in line(ocrlab.check_step(Model(True), points(), classes), "mode")
    assert line(ocrlab.check_step(Model(False), points(), classes), "mode").startswith("[ok]")
    assert "all outputs are the same" in line(ocrlab.check_step(Model(False, 2), points(), classes), "progress")


def test_texts_of_which_the_padding_is_read() -> None:
    class Last(nn.Module):
        def __init__(self, packed: bool) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = (
                nn.Embedding(VOCABULARY, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 3),
            )  # fmt: skip
            self.packed = packed

        def forward(self, ids: Tensor) -> Tensor:
            h = self.rnn(self.embed(ids))[0]
            return self.head(h[torch.arange(len(ids)), (ids != 0).sum(1) - 1] if self.packed else h[:, -1])

    ids = tokens(8) * (torch.arange(LENGTH) < torch.tensor([[5], [8], [12], [6], [4], [9], [12], [7]])).long()
    batch = ids, torch.arange(8) % 3
    assert "more tokens of padding" in line(ocrlab.check_step(Last(False), batch, classes), "sequences")
    assert line(ocrlab.check_step(Last(True), batch, classes), "sequences").startswith("[ok]")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_rewarded_becomes_more_likely(sign: float) -> None:
    states, actions = points(32)
    batch = {
        "states": states,
        "actions": actions,
        "returns": torch.randn(32, generator=torch.Generator().manual_seed(4)),
    }

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        gain = (batch["returns"] - batch["returns"].mean()) / batch["returns"].std()
        chosen = model(batch["states"]).log_softmax(1).gather(1, batch["actions"][:, None])[:, 0]
        return -sign * (chosen * gain).mean()

    report = ocrlab.check_step(net(), batch, loss)
    assert ("what was rewarded becomes less likely" in str(report)) is (sign < 0)


@pytest.mark.parametrize("stride", [2, 12])
def test_windows_of_one_series_on_both_sides_of_the_split(stride: int) -> None:
    series = torch.randn(1200, generator=torch.Generator().manual_seed(5)).cumsum(0)
    starts = torch.randperm(1200 // stride - 12 // stride - 1, generator=torch.Generator().manual_seed(6)) * stride
    windows = torch.stack([series[start : start + 12] for start in starts.tolist()])
    train, valid = (TensorDataset(part[:, :-1], part[:, -1:]) for part in (windows[:-20], windows[-20:]))
    loaders = [DataLoader(part, batch_size=16, shuffle=part is train) for part in (train, valid)]
    model = nn.Sequential(nn.Linear(11, 8), nn.Tanh(), nn.Linear(8, 1))
    loss = lambda m, b: functional.mse_loss(m(b[0]), b[1])  # noqa: E731
    report = ocrlab.check_step(model, next(iter(loaders[0])), loss, loader=loaders[0], val_loader=loaders[1])
    assert ("share" in line(report, "data")) is (stride == 2)


@pytest.mark.parametrize("mapping", [(0, 1, 2), (1, 2, 0)])
def test_labels_that_mean_another_class_in_validation(mapping: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(7)
    centres = 2 * torch.randn(3, 8, generator=generator)
    labels = torch.randint(3, (300,), generator=generator)
    inputs = centres[labels] + torch.randn(300, 8, generator=generator)
    train = TensorDataset(inputs[:200], labels[:200])
    valid = TensorDataset(inputs[200:], torch.tensor(mapping)[labels[200:]])
    loaders = [DataLoader(part, batch_size=16, shuffle=part is train) for part in (train, valid)]
    report = ocrlab.check_step(net(), next(iter(loaders[0])), classes, loader=loaders[0], val_loader=loaders[1])
    assert ("is what the training set calls" in line(report, "data")) is (mapping[0] != 0)


class Order(Sampler[int]):
    """Every sample once, or as many draws with replacement."""

    def __init__(self, count: int, again: bool) -> None:
        self.count, self.again = count, again

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        order = torch.randint(self.count, (self.count,)) if self.again else torch.randperm(self.count)
        return iter(order.tolist())


@pytest.mark.parametrize("again", [False, True])
def test_an_epoch_draws_each_sample_once(again: bool) -> None:
    loader = DataLoader(TensorDataset(*points(64)), batch_size=16, sampler=Order(64, again))
    model, state = net(), torch.get_rng_state()
    result = line(ocrlab.check_step(model, points(), classes, loader=loader), "data")
    assert ("are not drawn in an epoch" in result) is again and torch.equal(state, torch.get_rng_state())


def test_a_scheduler_that_was_not_restored() -> None:
    for restored in (True, False):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for _ in range(6):
            classes(model, points()).backward()
            optimizer.step()
            scheduler.step()
        saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        optimizer.load_state_dict(saved[0])
        if restored:
            scheduler.load_state_dict(saved[1])
        result = line(ocrlab.check_step(model, points(), classes, optimizer, scheduler=scheduler), "resume")
        assert result.startswith("[ok]") is restored and ("the scheduler none" in result) is not restored


def flattened(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]).reshape(-1, 5), batch[1].flatten())


def moved(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]).movedim(1, -1).reshape(-1, 5), batch[1].flatten())


def dice(model: nn.Module, batch: Any) -> Tensor:
    share, mask = model(batch[0]).softmax(1), functional.one_hot(batch[1], 5).movedim(-1, 1)
    return 1 - (share * mask).sum((0, 2, 3)).div((share + mask).sum((0, 2, 3))).mean() + moved(model, batch)


@pytest.mark.parametrize(("loss", "ok"), [(flattened, False), (moved, True), (dice, True)])
def test_a_target_acts_on_the_output_of_its_own_pixel(loss: Callable[..., Tensor], ok: bool) -> None:
    torch.manual_seed(0)
    batch = torch.rand(6, 3, 12, 10), torch.randint(-1, 5, (6, 12, 10)).clamp(min=0)
    result = line(ocrlab.check_step(nn.Conv2d(3, 5, 3, padding=1), batch, loss), "alignment")
    assert result.startswith("[ok]" if ok else "[fail]") and ("pixel (" in result) is not ok


class Weighted(torch.autograd.Function):
    """The squared error of each value; its backward ignores the incoming gradient, or uses it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, target)
        ctx.right = right
        return (x - target).square()

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None]:
        x, target = ctx.saved_tensors
        return 2 * (x - target) * (incoming if ctx.right else 1), None, None


@pytest.mark.parametrize("right", [False, True])
def test_a_backward_that_ignores_the_factor_of_the_loss(right: bool) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return (Weighted.apply(model(batch[0])[:, 0], batch[1].float(), right) * torch.rand(16)).mean()

    result = line(ocrlab.check_step(net(), points(), loss), "splitting")
    assert result.startswith("[skip]" if right else "[fail]") and ("Weighted: twice the loss" in result) is not right


def test_a_part_that_another_optimizer_moves_is_not_missing_in_this_one() -> None:
    model = nn.ModuleDict({"actor": nn.Linear(8, 2), "critic": net()})
    critic = torch.optim.Adam(model["critic"].parameters())

    def report() -> Any:
        return ocrlab.check_step(model, points(), lambda m, batch: classes(m["critic"], batch), critic)

    assert "actor (2 parameters): in no group" in str(report())
    other = torch.optim.Adam(model["actor"].parameters())
    assert not report().findings and other.param_groups


def denoising(same: bool) -> Callable[..., Tensor]:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        noise = torch.randn_like(batch[0])
        return functional.mse_loss(model(batch[0] + noise), noise if same else torch.randn_like(noise))

    return loss


@pytest.mark.parametrize("same", [True, False])
def test_noise_that_is_the_target_is_in_the_input(same: bool) -> None:
    report = ocrlab.check_step(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)), points(), denoising(same))
    assert ("random numbers of the shape (16, 8)" in line(report, "progress")) is not same


class Uncertain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.log_vars = net(), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("penalty", [True, False])
def test_learned_weights_of_losses_need_a_penalty(penalty: bool) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch[0])
        losses = torch.stack([functional.cross_entropy(out, batch[1]), out.square().mean()])
        return (torch.exp(-model.log_vars) * losses + (model.log_vars if penalty else 0)).sum()

    report = ocrlab.check_step(Uncertain(), points(), loss)
    assert ("log_vars: the loss falls from" in line(report, "progress")) is not penalty


class LastStep(nn.Module):
    """Reads a step of a packed sequence: the last one of the batch, or of the sample."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own, self.gru, self.head = own, nn.GRU(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.head(out[range(len(x)), lengths - 1] if self.own else out[:, -1])


@pytest.mark.parametrize("own", [True, False])
def test_the_last_step_is_that_of_each_sample(own: bool) -> None:
    torch.manual_seed(0)
    batch = torch.rand(12, 9, 3), torch.tensor([9, *range(3, 8), *range(3, 9)]), torch.arange(12) % 2
    loss = lambda model, batch: functional.cross_entropy(model(batch[0], batch[1]), batch[2])  # noqa: E731
    report = ocrlab.check_step(LastStep(own), batch, loss)
    assert ("11 of 12 samples differ and have the same output" in line(report, "progress")) is not own


@pytest.mark.parametrize("differ", [True, False])
def test_two_views_of_a_sample_differ(differ: bool) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        a, b = (functional.normalize(model(view), dim=1) for view in batch)
        return functional.cross_entropy(a @ b.T, torch.arange(len(a)))

    x, _ = points()
    report = ocrlab.check_step(nn.Linear(8, 4), (x, x + differ * 0.1 * torch.randn_like(x)), loss)
    assert ("views that do not differ" in str(report)) is not differ


class Erasing(Dataset[Any]):
    """Erases a random part of each picture, in the stored one or in a copy."""

    def __init__(self, copies: bool) -> None:
        self.pictures, self.copies = torch.rand(8, 1, 12, 12), copies

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = self.pictures[index].clone() if self.copies else self.pictures[index]
        row = int(torch.randint(0, 10, ()))
        picture[:, row : row + 3] = 0
        return picture, index % 3


@pytest.mark.parametrize("copies", [True, False])
def test_a_random_transform_leaves_the_stored_sample_alone(copies: bool) -> None:
    loader = DataLoader(Erasing(copies), batch_size=8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    report = ocrlab.check_step(model, next(iter(loader)), classes, loader=loader)
    assert ("is another one when it is read again" in line(report, "data")) is not copies


@pytest.mark.parametrize("momentum", [0.1, 0.99, None])
def test_running_statistics_of_the_last_batch_only(momentum: float | None) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=momentum), nn.ReLU(), nn.Linear(16, 3))
    assert ("momentum=0.99" in str(ocrlab.check_step(model, points(), classes))) is (momentum == 0.99)


@pytest.mark.parametrize("where", ["always", "on purpose", "in training"])
def test_dropout_in_eval_mode_may_be_meant(where: str) -> None:
    class Dropping(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            if where == "on purpose":
                return functional.dropout(x, 0.3, training=True)
            return functional.dropout(x, 0.3) if where == "always" else functional.dropout(x, 0.3, self.training)

    report = ocrlab.check_step(nn.Sequential(Dropping(8, 16), nn.ReLU(), nn.Linear(16, 3)), points(), classes)
    assert ("drops values in eval mode" in str(report)) is (where == "always")


def test_logits_between_samples_are_no_mixture() -> None:
    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 16)

        def forward(self, x: Tensor) -> Tensor:
            z = functional.normalize(self.layer(x), dim=1)
            return z @ functional.normalize(x @ torch.ones(8, 16), dim=1).t()

    batch = points()[0], torch.arange(16)
    assert "changes the output of sample" not in str(ocrlab.check_step(Contrast(), batch, classes))


@pytest.mark.parametrize("both", [False, True])
def test_edges_that_are_listed_in_both_directions(both: bool) -> None:
    edges = torch.randint(0, 400, (600, 2), generator=torch.Generator().manual_seed(0))
    edges = torch.cat([edges, edges.flip(1)]) if both else edges
    edges = edges[torch.randperm(len(edges), generator=torch.Generator().manual_seed(1))]
    sets = [TensorDataset(part, torch.arange(len(part)) % 3) for part in (edges[:-200], edges[-200:])]
    model = nn.Sequential(nn.Embedding(400, 8), nn.Flatten(), nn.Linear(16, 3))
    loaders = [DataLoader(part, 16) for part in sets]
    report = ocrlab.check_step(model, next(iter(loaders[0])), classes, loader=loaders[0], val_loader=loaders[1])
    assert ("with their ends swapped" in str(report)) is both


@pytest.mark.parametrize("leak", [False, True])
def test_windows_that_begin_alike_share_steps_by_chance(leak: bool) -> None:
    series = torch.randn(900, generator=torch.Generator().manual_seed(0))
    starts = torch.randperm(880, generator=torch.Generator().manual_seed(1))[:300]
    rows = torch.stack([series[at : at + 16] for at in starts.tolist()])
    if not leak:  # a rule with few states
        first = torch.randint(0, 9, (300, 2), generator=torch.Generator().manual_seed(1)).tolist()
        rows = torch.tensor([[a, b, *((a + b * k) % 9 for k in range(14))] for a, b in first]).float()
        rows[:, :5] += torch.rand(300, 5, generator=torch.Generator().manual_seed(2)) * (torch.arange(300) % 2)[:, None]
    sets = [TensorDataset(part, torch.arange(len(part)) % 3) for part in (rows[:250], rows[250:])]
    loaders = [DataLoader(part, 16) for part in sets]
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    report = ocrlab.check_step(model, next(iter(loaders[0])), classes, loader=loaders[0], val_loader=loaders[1])
    assert ("steps or more with a training window" in str(report)) is leak


@pytest.mark.parametrize("boxes", ["stay", "move", "none"])
def test_pictures_that_are_flipped_beside_their_boxes(boxes: str) -> None:
    class Pictures(Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            draw = torch.Generator().manual_seed(index)
            image, box = torch.randn(3, 20, 20, generator=draw), torch.rand(4, generator=draw)
            if flip := bool(torch.rand(1) < 0.5):
                image = image.flip(-1)
            box = torch.stack([1 - box[2], box[1], 1 - box[0], box[3]]) if flip and boxes == "move" else box
            return image, box if boxes != "none" else index % 3

    def loss(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0])
        return functional.mse_loss(out, batch[1]) if boxes != "none" else functional.cross_entropy(out, batch[1])

    loader = DataLoader(Pictures(), 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(1200, 4))
    report = ocrlab.check_step(model, next(iter(loader)), loss, loader=loader)
    assert ("its picture was flipped from left to right" in str(report)) is (boxes == "stay")


@pytest.mark.parametrize("loaded", [False, True])
def test_a_schedule_that_begins_again_beside_a_restored_sgd(loaded: bool) -> None:
    states = []
    for turn in range(2):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
        if turn:
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1]) if loaded else None
            report = ocrlab.check_step(model, points(), classes, optimizer, scheduler=scheduler)
            assert ("and the scheduler none" in str(report)) is not loaded, str(report)
            return
        for _ in range(30):
            classes(model, points()).backward()
            optimizer.step()
            scheduler.step()
        states = [optimizer.state_dict(), scheduler.state_dict()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_that_a_low_precision_made_equal(dtype: torch.dtype) -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            angles = torch.outer(torch.arange(400, dtype=dtype), (0.1 ** torch.arange(8)).to(dtype))
            self.register_buffer("places", torch.cat([angles.cos(), angles.sin()], 1).to(dtype))
            self.layer = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.cat([x, x], 1) * self.places[: len(x)].float())

    text = line(ocrlab.check_step(Placed(), points(), classes), "precision")
    assert ("rows 256 and 257 are equal" in text) is (dtype == torch.bfloat16), text


class Recomputed(torch.autograd.Function):
    """An activation checkpoint written by hand."""

    @staticmethod
    def forward(ctx: Any, layers: nn.Module, keeps: bool, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.layers, ctx.state, ctx.x, ctx.weights = layers, torch.get_rng_state() if keeps else None, x, weights
        with torch.no_grad():
            return layers(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        now = torch.get_rng_state()
        torch.set_rng_state(now if ctx.state is None else ctx.state)
        x = ctx.x.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.layers(x)
        torch.set_rng_state(now) if ctx.state is not None else None
        return None, None, *torch.autograd.grad(out, (x, *ctx.weights), gradients)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_backward_pass_that_draws_another_dropout_mask(keeps: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.part = (
                nn.Linear(8, 16),
                nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 3)),
            )

        def forward(self, x: Tensor) -> Tensor:
            return Recomputed.apply(self.part, keeps, self.first(x), *self.part.parameters())

    text = line(ocrlab.check_step(Net(), points(), classes), "transformations")
    assert ("draws random numbers that the forward pass has not drawn" in text) is not keeps, text


@pytest.mark.parametrize("masked", [True, False])
def test_signals_that_are_longer_with_the_same_lengths(masked: bool) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Conv1d(4, 8, 3, padding=1), nn.Linear(8, 3)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            mask = (torch.arange(x.shape[2]) < lengths[:, None] * (1 if masked else 100)).float()[:, None]
            return self.head((self.layer(x).relu() * mask).sum(2) / mask.sum(2))

    lengths = torch.tensor([30, 12, 20, 9, 25, 28])
    signals = torch.randn(6, 4, 30) * (torch.arange(30) < lengths[:, None])[:, None]
    batch = signals, lengths, torch.arange(6) % 3
    report = ocrlab.check_step(Pooled(), batch, lambda model, b: functional.cross_entropy(model(b[0], b[1]), b[2]))
    assert ("more padding changes the outputs" in str(report)) is not masked, str(report)


@pytest.mark.parametrize("kind", ["shifted", "sees", "autoencoder"])
def test_a_causal_model_that_sees_the_value_it_predicts(kind: str) -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.Conv1d(1, 8, 3), nn.Conv1d(8, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            pad = {"shifted": (3, -1), "sees": (2, 0), "autoencoder": (1, 1)}[kind]
            return self.out(self.layer(functional.pad(x, pad)).tanh())

    batch = torch.randn(8, 1, 24, generator=torch.Generator().manual_seed(0))
    report = ocrlab.check_step(Causal(), batch, lambda model, x: functional.mse_loss(model(x), x))
    assert ("it sees the value that it must predict" in str(report)) is (kind == "sees"), str(report)


@pytest.mark.parametrize("same", [False, True])
def test_noise_of_a_model_whose_last_layer_begins_at_zero(same: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        noise = torch.randn_like(batch[0])
        return functional.mse_loss(model(batch[0] + noise), noise if same else torch.randn_like(noise))

    report = ocrlab.check_step(model, points(), loss)
    assert ("is to predict noise that is not in its input" in str(report)) is not same, str(report)


def test_heads_of_other_tasks_need_no_gradient_in_a_batch_of_one_task() -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.heads = nn.Linear(8, 8), nn.ModuleDict({"kind": nn.Linear(8, 3), "price": nn.Linear(8, 1)})

        def forward(self, x: Tensor) -> Tensor:
            return self.heads["kind"](self.trunk(x).tanh())

    model = Tasks()
    report = ocrlab.check_step(model, points(), classes, torch.optim.SGD(model.parameters(), 0.1))
    assert line(report, "coverage").startswith("[ok]"), str(report)


def test_a_state_that_forward_keeps_is_no_lost_state() -> None:
    class Carrying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head, self.state = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3), None

        def forward(self, x: Tensor) -> Tensor:
            h, state = self.cell(x[:, None], self.state)
            self.state = state.detach()
            return self.head(h[:, 0])

    model = Carrying()
    report = ocrlab.check_step(model, points(), classes, torch.optim.Adam(model.parameters()))
    assert line(report, "resume").startswith("[ok]"), str(report)


def test_large_whole_numbers_are_no_lengths_and_norms_have_no_table() -> None:
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.Flatten(), nn.Linear(80, 3))
    times = torch.arange(6) + 1_700_000_000  # a mask of that length would need gigabytes
    batch = torch.randn(6, 4, 12), times, torch.arange(6) % 3
    report = ocrlab.check_step(model, batch, lambda m, b: functional.cross_entropy(m(b[0]), b[2]))
    assert "raised" not in str(report) and report.ok, str(report)


def test_sizes_of_pictures_are_no_edges_and_shares_no_boxes() -> None:
    sizes = torch.tensor([(480, 640), (640, 480), (427, 640), (640, 427)] * 40)
    sets = [TensorDataset(part, torch.arange(len(part)) % 3) for part in (sizes[:120], sizes[120:])]
    loaders = [DataLoader(part, 8) for part in sets]
    model = nn.Linear(2, 3)
    loss = lambda m, b: functional.cross_entropy(m(b[0].float() / 640), b[1])  # noqa: E731
    report = ocrlab.check_step(model, next(iter(loaders[0])), loss, loader=loaders[0], val_loader=loaders[1])
    assert "ends swapped" not in str(report)


def test_a_schedule_is_walked_on_a_copy() -> None:
    from ocrlab.debug.laws.schedule import walk

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    both = [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, both, [5])
    before = str(scheduler.state_dict()), optimizer.param_groups[0]["lr"]
    assert len(walk(scheduler, 20)) == 21
    assert (str(scheduler.state_dict()), optimizer.param_groups[0]["lr"]) == before and scheduler._schedulers[
        1
    ] is both[1]
