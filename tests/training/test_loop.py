"""Training end to end on a handful of tiny pages: run folder, exact resume, failures that stay visible."""

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.data.formats.reader import Index
from ocrlab.errors import CheckpointError, DataError, RunError
from ocrlab.inference import Detector, checkpoint
from ocrlab.inference.detector import newest_checkpoint
from ocrlab.losses.db_loss import LossParts
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training import lightning_module, loop, run_callback
from ocrlab.training.loop import AtomicIO
from tests.training.forked_ranks import draw


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> Path:
    """Three training pages and two validation pages of black bars on grey, one box each bar."""
    return draw(tmp_path_factory.mktemp("pages"), train=3, val=2)


def tiny(pages: Path, runs: Path, *more: str) -> configs.Config:
    network = ("width=32", "crop=64", "batch_size=2", "trainer.max_steps=4", "trainer.accumulate_grad_batches=2")
    often = ("trainer.val_every=3", "trainer.log_every=1", "trainer.accelerator=cpu", "trainer.precision=fp32")
    machine = ("runtime.channels_last=false", "runtime.workers=0", "runtime.threads=1")
    return configs.load(overrides=[f"data={pages}", f"runs={runs}", *network, *often, *machine, *more])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content = checkpoint.load(folder / "checkpoints" / "last.ckpt")
    state = dict(content["state_dict"])
    moments = content["optimizer_states"][0]["state"]
    return state | {f"{i}.{k}": v for i, s in moments.items() for k, v in s.items() if torch.is_tensor(v)}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def losses(folder: Path) -> list[str]:
    rows = (folder / "metrics.csv").read_text().splitlines()
    columns = rows[0].split(",")
    step, loss = columns.index("step"), columns.index("loss")
    return [f"{r.split(',')[step]}:{r.split(',')[loss]}" for r in rows[1:] if r.split(",")[loss]]


@pytest.fixture(scope="module")
def whole(pages, tmp_path_factory):
    """A run that nothing interrupted, saved at its end."""
    return stopped(pages, tmp_path_factory.mktemp("whole"), None)


def stopped(pages: Path, runs: Path, after: int | None, *more: str) -> Path:
    """Run to the end, or stop after micro-batch `after` as a signal would; return the run folder."""
    finish = run_callback.RunCallback.finish_batch

    def stop(self, trainer):
        if trainer.lightning_module.micro == after:
            self.stop_signal = signal.SIGTERM
        if trainer.lightning_module.micro == 8:
            self.save_last(trainer)
        finish(self, trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_callback.RunCallback, "finish_batch", stop)
        if after is None:
            return loop.fit(tiny(pages, runs, *more)).folder
        with pytest.raises(SystemExit) as left:
            loop.fit(tiny(pages, runs, *more))
    assert left.value.code == 128 + signal.SIGTERM
    ((folder, record),) = run_folder.list_runs(runs)
    assert record.status == "failure"
    return folder


def go_on(folder: Path) -> Path:
    """Resume a run, with a checkpoint at its end alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            run_callback.RunCallback,
            "finish_batch",
            lambda self, trainer: self.save_last(trainer) if trainer.lightning_module.micro == 8 else None,
        )
        assert loop.fit(configs.Config(), resume=folder).folder == folder
    return folder


def interrupted(pages: Path, runs: Path, after: int, *more: str) -> Path:
    """Stop a run after micro-batch `after`, and resume it."""
    return go_on(stopped(pages, runs, after, *more))


@pytest.mark.parametrize("after", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 4, 6, 7))])
def test_resume_is_exact_after_any_micro_batch(pages, whole, tmp_path, after):
    """1 and 5 lie between two micro-batches of one step, 4 is a step's end, 6 a validation; epochs hold 1.5 batches."""
    folder = interrupted(pages, tmp_path, after)
    assert same(weights(folder), weights(whole))
    assert losses(folder) == losses(whole)


@pytest.mark.parametrize("sanity", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stop_waits_for_no_validation_and_resume_is_exact_all_the_same(pages, whole, tmp_path, sanity, monkeypatch):
    """Thousands of pages may take minutes. The validation that was left is not made again: no step depends on it."""
    ended, looked_at = run_callback.RunCallback.on_validation_batch_end, []

    def asked(self, trainer, *rest):
        looked_at.append(trainer.sanity_checking)
        if sanity or not trainer.sanity_checking:
            self.ask_to_stop(signal.SIGINT, None)
        ended(self, trainer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(run_callback.RunCallback, "on_validation_batch_end", asked)
        with pytest.raises(SystemExit, match="130"):
            loop.fit(tiny(pages, tmp_path))
    assert looked_at.count(sanity) == 1
    ((folder, _),) = run_folder.list_runs(tmp_path)
    go_on(folder)
    assert same(weights(folder), weights(whole))
    assert losses(folder) == losses(whole)


def test_a_run_of_more_gpus_goes_on_with_fewer_and_says_so(pages, tmp_path, monkeypatch):
    """As rank 0 of four saves it: four random states, and tensors that lie on its GPU."""
    folder = stopped(pages, tmp_path, 3)
    last = folder / "checkpoints" / "last.ckpt"
    content = checkpoint.load(last)
    content["random"] |= {f"cuda{i}": torch.zeros(16, dtype=torch.uint8) for i in range(4)}
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _storage: "cuda:3")
        torch.save(content, last)
    (last.parent / ".last.ckpt.1.tmp").write_bytes(b"of a process that was killed")
    events = []
    assert loop.fit(configs.Config(), resume=folder, progress=events.append).metrics["steps"] == 4
    assert not list(last.parent.glob(".*"))
    assert len([e for e in events if "random states of 4 GPU(s), and 0 are used" in e.get("text", "")]) == 1


def test_losses_of_the_host_and_of_a_device_are_saved_together(pages, tmp_path):
    """A resumed run begins with some on the host; a second stop before the next log row saves both."""
    folder = run_folder.RunFolder(tmp_path, run_folder.now())
    watcher = run_callback.RunCallback(tiny(pages, tmp_path), folder, None, loop.silent)
    with FakeTensorMode():  # a CUDA tensor without a GPU
        watcher.losses = [LossParts(*torch.zeros(4, device=device).unbind()) for device in ("cpu", "cuda")]
        saved = watcher.state_dict()["losses"]
    assert (saved.shape, saved.device.type) == ((2, 4), "cpu")


@pytest.mark.slow
def test_workers_do_not_change_the_result(pages, whole, tmp_path):
    assert same(weights(stopped(pages, tmp_path, None, "runtime.workers=2")), weights(whole))


def test_run_folder_holds_what_it_promises(whole):
    sentinel = json.loads((whole / ".SUCCESS").read_text())
    assert sentinel["schema"] == 1
    assert sentinel["status"] == "success"
    assert 0 <= sentinel["metrics"]["hmean@0.5"] <= 1
    assert not (whole / ".RUNNING").exists()
    again = configs.load(whole / "config.yaml")
    assert again.trainer.precision == "fp32"
    assert again.runtime.workers == 0
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["machine"]["reasons"]["accelerator"]
    assert (whole / "config.yaml").stat().st_mode & 0o077 == 0
    best = newest_checkpoint(whole.parent)
    assert best.parent == whole / "checkpoints"
    assert best.name.startswith("best-resnet18_slim-fpn-step")


def test_both_checkpoints_load_without_pickle_and_detect(whole, pages):
    for name in ("last.ckpt", newest_checkpoint(whole.parent).name):
        path = whole / "checkpoints" / name
        torch.load(path, weights_only=True)
        regions = Detector.load(path).detect(pages / "val" / "images" / "p0.png")
        assert (regions.width, regions.height) == (128, 160)


def test_the_first_error_survives_a_lost_run_folder(pages, tmp_path, monkeypatch):
    """The system that this rebuilds lost its CUDA error to the FileNotFoundError of its own handler."""

    def fail(self, *_args):
        import shutil

        shutil.rmtree(self.finish_batch.__self__.folder.path)
        raise RuntimeError("CUDA error: an illegal instruction was encountered")

    monkeypatch.setattr(lightning_module.Training, "training_step", fail)
    with pytest.raises(RuntimeError, match="illegal instruction"):
        loop.fit(tiny(pages, tmp_path))
    ((_, record),) = run_folder.list_runs(tmp_path)
    assert record.status == "failure"
    assert "illegal instruction" in record.error["message"]
    assert "test_loop.py" in json.dumps(record.error)


def test_bad_data_is_a_failed_run_with_its_reason(tmp_path):
    with pytest.raises(DataError):
        loop.fit(tiny(tmp_path / "nowhere", tmp_path / "runs"))
    ((_, record),) = run_folder.list_runs(tmp_path / "runs")
    assert record.status == "failure"
    assert "nowhere" in record.error["message"]


def test_a_single_bad_page_is_reported_and_does_not_end_the_run(pages, tmp_path):
    import shutil

    root = tmp_path / "data"
    shutil.copytree(pages, root)
    page = root / "train" / "images" / "p1.png"
    page.write_bytes(page.read_bytes()[:200])
    events = []
    result = loop.fit(tiny(root, tmp_path / "runs"), progress=events.append)
    assert result.status == "success"
    assert any("p1" in e.get("text", "") for e in events)
    with pytest.raises(DataError, match="p1"):
        loop.fit(tiny(root, tmp_path / "runs", "runtime.strict=true"))


def test_early_stopping_and_epochs(pages, tmp_path, monkeypatch):
    config = tiny(pages, tmp_path, "trainer.max_steps=30", "trainer.val_every=1", "trainer.patience=2", "optim.lr=1e-9")
    assert loop.fit(config).metrics["steps"] < 30
    config = tiny(pages, tmp_path)
    config.trainer.max_epochs = 2
    assert loop.fit(config).metrics["steps"] == 2  # 2 epochs x 3 pages over batches of 2 x 2


def test_killed_run_resumes_from_its_last_checkpoint(pages, tmp_path):
    """SIGKILL leaves no time for anything: the folder reads as died, and resuming goes on from last.ckpt."""
    script = (
        "import sys; from ocrlab.config import schema; from ocrlab.training import loop, run_callback\n"
        "run_callback.SAVE_EVERY = 0; loop.fit(schema.load(overrides=sys.argv[1:]))"
    )
    config = tiny(pages, tmp_path, "trainer.max_steps=500")
    overrides = [
        f"{k}={json.dumps(v) if isinstance(v, list | tuple) else v}"
        for k, v in configs.flat(config).items()
        if v is not None
    ]
    child = subprocess.Popen([sys.executable, "-c", script, *overrides], start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/checkpoints/last.ckpt")) and time.monotonic() < deadline:
        assert child.poll() is None
        time.sleep(0.1)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    ((folder, record),) = run_folder.list_runs(tmp_path)
    assert record.status == "died"
    about = checkpoint.load(folder / "checkpoints" / "last.ckpt")["ocrlab"]
    assert about["micro"] >= 1
    text = (folder / "config.yaml").read_text().replace("max_steps: 500", f"max_steps: {about['step'] + 2}")
    (folder / "config.yaml").write_text(text)
    assert loop.fit(configs.Config(), resume=folder).metrics["steps"] == about["step"] + 2


@pytest.mark.parametrize(("damage", "text"), [
    (lambda p: p.write_bytes(p.read_bytes()[:1000]), "cannot be read as a checkpoint"),
    (lambda p: torch.save({"weights": 1}, p), "was not written by ocrlab"),
    (lambda p: p.unlink(), "There is no checkpoint"),
])  # fmt: skip
def test_a_broken_checkpoint_is_named(whole, tmp_path, damage, text):
    path = tmp_path / "copy.ckpt"
    path.write_bytes(newest_checkpoint(whole.parent).read_bytes())
    damage(path)
    with pytest.raises(CheckpointError, match=text):
        Detector.load(path)


def test_training_begins_from_another_checkpoint_and_remembers_it(pages, whole, tmp_path):
    first = newest_checkpoint(whole.parent)
    second = loop.fit(tiny(pages, tmp_path, f"weights={first}", "trainer.max_steps=1", "optim.lr=1e-9", "seed=1"))
    before, after = (checkpoint.load_detector(path)[0].state_dict() for path in (first, second.checkpoint))
    name = "encoder.layer4.1.conv2.weight"
    torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-6)
    assert f"weights: {first}" in (second.folder / "config.yaml").read_text()


def test_training_cannot_begin_from_another_network(pages, whole, tmp_path):
    other = tiny(pages, tmp_path / "b", f"weights={newest_checkpoint(whole.parent)}", "width=16")
    with pytest.raises(CheckpointError, match=r"another network.*width=32.*width=16.*Set encoder, decoder and width"):
        loop.fit(other)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        loop.fit(tiny(pages, tmp_path / "c", f"weights={tmp_path}/absent.ckpt"))


@pytest.mark.parametrize("reaches", [False, True], ids=["loss only", "gradients too"])
def test_a_loss_that_is_no_number_is_reported_with_its_pages(pages, tmp_path, monkeypatch, reaches):
    whole_loss, calls, events = loop.Training.training_step, itertools.count(), []

    def step(self, batch, index):
        total = whole_loss(self, batch, index)
        bad = float("nan") if next(calls) == 2 else 0.0
        self.parts = self.parts._replace(total=self.parts.total + bad)
        return total * (1 + bad) if reaches else total

    monkeypatch.setattr(loop.Training, "training_step", step)
    if reaches:
        with pytest.raises(RunError, match="weights are not finite any more.*micro-batches was NaN"):
            loop.fit(tiny(pages, tmp_path), progress=events.append)
        return
    done = loop.fit(tiny(pages, tmp_path), progress=events.append)
    assert done.metrics["not_finite"] == 1
    warned = [
        event["text"] for event in events if event["kind"] == "warning" and "micro-batches was NaN" in event["text"]
    ]
    assert len(warned) == 2  # at once, and at the end
    assert "of 1 of 8" in warned[1]


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


def ended(tmp_path, monkeypatch, on_some: float, best: float, on_all: float, val_pages: int | None):
    """Run `final_metrics` after four steps without validation; return its figures, what was measured and written.

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

    monkeypatch.setattr(loop, "measure_pages", measure)
    return loop.final_metrics(module, watcher, of(["a", "b", "c"]), loop.silent), asked, written


@pytest.mark.parametrize(("on_some", "on_all", "val_pages", "measured", "figure"), [
    (0.5, 0.9, 1, [(1, 4.0), (3, 2.0)], 0.9),  # with 0.9 of all pages the last weights would win; of one they lose
    (0.7, 0.3, 1, [(1, 4.0), (3, 4.0)], 0.3),
    (0.5, 0.0, None, [(3, 4.0)], 0.6),  # nothing is measured twice
    (0.7, 0.0, None, [(3, 4.0)], 0.7),
])  # fmt: skip
def test_the_last_weights_and_the_best_are_compared_on_the_same_pages(
    tmp_path, monkeypatch, on_some, on_all, val_pages, measured, figure
):
    metrics, asked, written = ended(tmp_path, monkeypatch, on_some, 0.6, on_all, val_pages)
    assert (asked, metrics) == (measured, {"hmean@0.5": figure})
    assert (("best", {"hmean@0.5": on_some}) in written) is (on_some > 0.6)


@pytest.mark.slow
def test_figures_of_an_earlier_step_are_not_those_of_the_last_weights(pages, tmp_path, monkeypatch):
    """The validation at the last step is left by a signal; the run that is resumed has no step to make any more."""
    ended = run_callback.RunCallback.on_validation_batch_end

    def asked(self, trainer, *rest):
        if trainer.global_step == 4 and not trainer.sanity_checking:
            self.ask_to_stop(signal.SIGINT, None)
        ended(self, trainer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(run_callback.RunCallback, "on_validation_batch_end", asked)
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


def test_a_state_of_a_gpu_that_is_not_here_is_read_to_the_host(tmp_path, monkeypatch):
    """Saved by rank 0 of four, resumed on a machine without a GPU: Lightning itself asks for the place it came from."""
    path = tmp_path / "last.ckpt"
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _storage: "cuda:3")
        torch.save({"ocrlab": {"schema": 1}, "weight": torch.arange(3.0)}, path)
    if torch.cuda.device_count() < 4:
        with pytest.raises(RuntimeError, match="cuda|CUDA"):
            torch.load(path, weights_only=True)
    content = AtomicIO().load_checkpoint(path)
    assert content["weight"].device.type == "cpu"
    assert content["weight"].tolist() == [0, 1, 2]
