"""A replay inside a Lightning trainer: a step is made with another batch than its hooks were given."""

from __future__ import annotations

from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ocrlab.recording import restored_lightning

IMAGES = [(torch.full((3, 8 + i, 8), float(i)), {"boxes": torch.zeros(i, 4)}) for i in range(6)]


class Detector(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(3, 1, 3)
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, targets = batch
        self.seen.append(("training", batch_idx, [int(image[0, 0, 0]) for image in images], len(targets)))
        return torch.stack([self.net(image).mean() for image in images]).sum()

    def validation_step(self, batch: Any, _index: int) -> None:
        self.seen.append(("validation", _index, [int(image[0, 0, 0]) for image in batch[0]], len(batch[1])))

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=2)  # makes a step's gradients more than once


class Chosen(lightning.Callback):
    """Leaves of the second batch only its last sample, as a fork for one sample does."""

    def __init__(self) -> None:
        self.take_back = restored_lightning.hand_over(None, "", None, None)

    def choose(self, module: Any, step: str, batch: Any, index: int) -> None:
        chosen = tuple(part[-1:] for part in batch) if index == 1 else batch
        self.take_back()
        self.take_back = restored_lightning.hand_over(module, step, batch, chosen)

    def on_train_batch_start(self, _trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.choose(module, "training_step", batch, batch_idx)

    def on_validation_batch_start(self, _trainer: Any, module: Any, batch: Any, batch_idx: int, _: int = 0) -> None:
        self.choose(module, "validation_step", batch, batch_idx)


@pytest.mark.filterwarnings("ignore")
def test_a_step_is_made_with_another_batch_until_that_is_taken_back() -> None:
    model, chosen = Detector(), Chosen()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[chosen], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    data = DataLoader(IMAGES, 2, collate_fn=lambda samples: tuple(zip(*samples, strict=True)))  # type: ignore[arg-type]
    trainer.fit(model, data, data)
    each = {kind: [seen[1:] for seen in model.seen if seen[0] == kind] for kind in ("training", "validation")}
    assert sorted({str(seen) for seen in each["training"]}) == ["(0, [0, 1], 2)", "(1, [3], 1)", "(2, [4, 5], 2)"]
    assert sum(seen[0] == 1 for seen in each["training"]) > 1, "each time that the step asks for its gradients"
    assert each["validation"] == [(0, [0, 1], 2), (1, [3], 1), (2, [4, 5], 2)]
    assert not {"training_step", "validation_step"} & model.__dict__.keys()


def test_a_step_that_somebody_has_replaced_himself_comes_back() -> None:
    model = Detector()
    model.training_step = own = lambda batch, batch_idx: batch  # type: ignore[method-assign, assignment]
    take_back = restored_lightning.hand_over(model, "training_step", "given", "chosen")
    assert model.training_step("given", 0) == "chosen"  # type: ignore[arg-type, comparison-overlap]
    take_back()
    assert model.training_step is own
