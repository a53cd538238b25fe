"""What the loader's and the memory notebook take for a step of a training is a step of a training."""

from __future__ import annotations

import torch

from ocrlab.config.schema import load
from ocrlab.data.dataset import Batch
from ocrlab.notebook.dataloader_job import training_step
from ocrlab.training.auto_settings import Machine
from ocrlab.training.lightning_module import Training


def test_a_step_moves_the_weights_where_a_training_moves_them() -> None:
    """Also with settings that are not the defaults: the ratio of hard negatives, the weights of the terms, clipping."""
    settings = {"width": 16, "loss.negative_ratio": 1.0, "loss.bce": 2.0, "optim.weight_decay": 0.3, "optim.lr": 0.01}
    config = load(overrides={**settings, "trainer.accelerator": "cpu", "trainer.precision": "fp32"})
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 64, 64), generator=generator, dtype=torch.uint8)
    maps = tuple((torch.rand(2, 1, 64, 64, generator=generator) > 0.6).float() for _ in range(4))
    batch = Batch(images, maps, ["a", "b"])
    model, optimiser, step = training_step(config)
    theirs = Training(config, Machine("cpu", 1, 0, bf16=False, channels_last=False, reasons={}))
    theirs.detector.load_state_dict(model.state_dict())
    optimizer = theirs.configure_optimizers()["optimizer"]
    for group in optimizer.param_groups:
        group["lr"] = config.optim.lr  # without the warm-up
    theirs.training_step(batch, 0).backward()
    theirs.configure_gradient_clipping(optimizer, config.optim.grad_clip)
    optimizer.step()
    step(batch)
    assert optimiser.state, "a step was made"
    for (name, ours), wanted in zip(model.named_parameters(), theirs.detector.parameters(), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6, msg=name)
