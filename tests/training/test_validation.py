"""Which weights a run calls its best: those that won on the same pages, on the device of the training."""

from __future__ import annotations

import csv
import signal
from types import SimpleNamespace

import pytest
import torch

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.data.formats.reader import Index
from ocrlab.inference import checkpoint
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training import loop, run_callback
from ocrlab.training.run_callback import Watcher
from tests.training.test_loop import pages, tiny  # noqa: F401  # a fixture


def of(samples) -> Index:
    return Index(samples, {}, [], "icdar", "val")


def test_a_part_of_the_pages_is_spread_over_all_of_them_and_over_the_ranks():
    index = of([SimpleNamespace(name=str(i)) for i in range(10)])
    names = [s.name for s in loop.validated_pages(index, configs.load(overrides=["trainer.val_pages=4"]))]
    assert names == ["0", "3", "6", "9"]
    assert loop.validated_pages(index, configs.load(overrides=["trainer.val_pages=10"])) is index.samples
    config = configs.load(overrides=["trainer.val_pages=3"])
    turns = [list(loop.validation_loader(index, config, Ranks(rank=r, world=2)).sampler) for r in (0, 1)]
    assert turns == [[0, 2], [1, None]]


def ended(tmp_path, monkeypatch, on_some: float, best: float, on_all: float, val_pages: int | None = 1):
    """Run `final` behind four steps without validation; return its figures, whose weights they are, and what was asked.

    The best checkpoint was found at step 2, with `best`; the last weights reach `on_some`, and whatever wins `on_all`.
    """
    averaged = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(averaged.weight, 4.0)
    trainer = SimpleNamespace(global_step=4, strategy=SimpleNamespace(root_device=torch.device("cpu")))
    config = configs.Config()
    config.trainer.val_pages = val_pages
    module = SimpleNamespace(config=config, averaged=averaged, trainer=trainer, ranks=Ranks(), scores={}, scored=2)
    path = tmp_path / "best.ckpt"
    checkpoint.save(
        {"ocrlab": {"schema": 1, "metrics": {"hmean@0.5": best}}, "detector": {"weight": torch.tensor([[2.0]])}}, path
    )
    written, asked = [], []
    watcher = SimpleNamespace(best=best, best_path=path, write=lambda row, step: written.append((step, row)))
    watcher.save_best = lambda module, scores: written.append(("best", scores))

    def measure(module, samples, progress):
        asked.append((len(samples), module.averaged.weight.item()))
        return {"hmean@0.5": on_some if len(asked) == 1 else on_all}

    monkeypatch.setattr(loop, "measure", measure)
    return loop.final_metrics(module, watcher, of(["a", "b", "c"]), loop.silent), asked, written


def test_what_training_saw_of_the_pages_is_compared_with_the_same_pages(tmp_path, monkeypatch):
    """The last weights would win with their figure of all pages, 0.9, over 0.6 of one page; on that page they lose."""
    metrics, asked, written = ended(tmp_path, monkeypatch, on_some=0.5, best=0.6, on_all=0.9)
    assert asked == [(1, 4.0), (3, 2.0)]
    assert metrics == {"hmean@0.5": 0.9}
    assert written == [(4, {"step": 4, "hmean@0.5": 0.5})]


def test_the_last_weights_win_where_they_are_better_on_these_pages(tmp_path, monkeypatch):
    metrics, asked, written = ended(tmp_path, monkeypatch, on_some=0.7, best=0.6, on_all=0.3)
    assert asked == [(1, 4.0), (3, 4.0)]
    assert metrics == {"hmean@0.5": 0.3}
    assert ("best", {"hmean@0.5": 0.7}) in written


@pytest.mark.parametrize(("last", "figure"), [(0.5, 0.6), (0.7, 0.7)])
def test_nothing_is_measured_twice(tmp_path, monkeypatch, last, figure):
    metrics, asked, _ = ended(tmp_path, monkeypatch, on_some=last, best=0.6, on_all=0.0, val_pages=None)
    assert asked == [(3, 4.0)]
    assert metrics == {"hmean@0.5": figure}


def test_the_last_measurement_is_done_on_the_device_of_the_training(pages, tmp_path, monkeypatch):  # noqa: F811
    """Lightning moves all weights to the host when it is done; minutes become hours there, and the numbers others."""
    devices = []

    def measure(module, samples, progress):
        devices.append({p.device.type for p in module.averaged.parameters()})
        return {"hmean@0.5": 0.0, "val/hmean": 0.0}

    run = loop._run

    def elsewhere(module, *rest):
        run(module, *rest)
        module.trainer.strategy._root_device = torch.device("meta")  # stands for a GPU

    monkeypatch.setattr(loop, "measure", measure)
    monkeypatch.setattr(loop, "_run", elsewhere)
    monkeypatch.setattr(Watcher, "save_best", lambda *_: None)
    loop.fit(tiny(pages, tmp_path, "trainer.max_steps=1", "trainer.val_every=100", "trainer.val_pages=1"))
    assert devices == [{"meta"}]


def test_figures_of_an_earlier_step_are_not_those_of_the_last_weights(pages, tmp_path, monkeypatch):  # noqa: F811
    """The validation at the last step is left by a signal; the run that is resumed has no step to make any more."""
    ended = run_callback.Watcher.on_validation_batch_end

    def asked(self, trainer, *rest):
        if trainer.global_step == 4 and not trainer.sanity_checking:
            self.ask_to_stop(signal.SIGINT, None)
        ended(self, trainer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(run_callback.Watcher, "on_validation_batch_end", asked)
        with pytest.raises(SystemExit, match="130"):
            loop.fit(tiny(pages, tmp_path, "trainer.val_every=2"))
    ((folder, _),) = run_folder.list_runs(tmp_path)
    about = checkpoint.load(folder / "checkpoints" / "last.ckpt")["ocrlab"]
    assert (about["step"], about["scored"]) == (4, 2)
    events = []
    result = loop.fit(configs.Config(), resume=folder, progress=events.append)
    assert [event["step"] for event in events if event["kind"] == "measure"] == [1, 2]
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["step"] for row in rows if row["hmean@0.5"]] == ["2", "4"]
    detector, _, card = checkpoint.load_detector(result.checkpoint)
    assert card["step"] in (2, 4)
    assert result.metrics["hmean@0.5"] == card["metrics"]["hmean@0.5"]
    assert detector.width == 32
