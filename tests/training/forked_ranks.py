"""Ranks for tests: real processes over gloo, forked from one that has imported everything, as imports take longest.

`python forked_ranks.py SCENARIO,... FOLDER` runs scenarios and leaves what each rank saw in FOLDER.
"""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.errors import OcrlabError
from ocrlab.evaluation.metrics import page_scores as scores
from ocrlab.run_folder.launcher import Ranks, detect_ranks
from ocrlab.training import loop
from ocrlab.training.distributed import collectives
from ocrlab.training.lightning_module import Training
from ocrlab.training.run_callback import RunCallback

TINY = (
    "width=32", "crop=64", "batch_size=2", "optim.grad_clip=0", "trainer.val_every=3",
    "trainer.log_every=1", "trainer.accelerator=cpu", "trainer.precision=fp32",
    "runtime.channels_last=false", "runtime.workers=0", "runtime.threads=1",
)  # fmt: skip


def draw(root: Path, train: int = 7, val: int = 5) -> Path:
    """Draw pages of black bars on grey, one box each bar, and return their folder."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        (root / split / "images").mkdir(parents=True)
        (root / split / "gts").mkdir()
        for i in range(count):
            image, lines = np.full((160, 128, 3), 200, np.uint8), []
            for y in range(16, 140, 30):
                x = int(rng.integers(8, 40))
                cv2.rectangle(image, (x, y), (x + 70, y + 12), (20, 20, 20), -1)
                lines.append(f"{x},{y},{x + 70},{y},{x + 70},{y + 12},{x},{y + 12},bar")
            cv2.imwrite(str(root / split / "images" / f"p{i}.png"), image)
            (root / split / "gts" / f"gt_p{i}.txt").write_text("\n".join(lines))
    return root


def spawn(world: int, work: Callable[[], None], *, srun: bool = False) -> list[int]:
    """Run `work` in `world` processes with the environment of torchrun, or of srun; return their exit statuses."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update(common | (as_srun(rank, world) if srun else as_torchrun(rank, world)))
            os._exit(guarded(work))
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def as_torchrun(rank: int, world: int) -> dict[str, str]:
    names = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    return {"TORCHELASTIC_RUN_ID": "test"} | {name: str(value) for name, value in names.items()}


def as_srun(rank: int, world: int) -> dict[str, str]:
    """Return what srun gives a task of a job over two nodes."""
    each = world // 2
    names = {"NTASKS": world, "PROCID": rank, "LOCALID": rank % each, "NODEID": rank // each, "NNODES": 2}
    message = {f"SLURM_{name}": str(value) for name, value in names.items()}
    return message | {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "train", "SLURM_TASKS_PER_NODE": f"{each}(x2)"}


def guarded(work: Callable[[], None]) -> int:
    try:
        work()
    except SystemExit as error:
        return int(error.code or 0)
    except BaseException as error:
        print(f"rank {os.environ.get('RANK')}: {error}", file=sys.stderr)
        if not isinstance(error, OcrlabError):
            traceback.print_exc()
        return 1
    return 0


def alone(work: Callable[[], None]) -> int:
    """Run `work` in a process without a launcher."""
    pid = os.fork()
    if pid == 0:
        os._exit(guarded(work))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(place, pages, *words, resume=None, stop=None):
    """Train and keep what was seen: losses of micro-batches, gradients before each step, weights after it.

    `stop` is a rank and a micro-batch after which it gets SIGTERM.
    """
    mine = detect_ranks()
    record: dict[str, Any] = {"losses": [], "pages": [], "gradients": [], "weights": {}, "micro": 0}
    ended = RunCallback.on_train_batch_end

    def see(self: RunCallback, trainer: Any, module: Training, out: Any, batch: Any, index: int) -> None:
        ended(self, trainer, module, out, batch, index)
        record["losses"].append(float(module.parts.total))
        record["pages"].append(list(batch.pages))
        record["micro"] = index + 1
        if stop == (mine.rank, module.micro + 1):
            os.kill(os.getpid(), signal.SIGTERM)

    def gradients(self: Training, *_args: Any, **_named: Any) -> None:
        gradients = [p.grad for p in self.detector.parameters() if p.grad is not None]
        record["gradients"].append(torch.cat([grad.flatten() for grad in gradients]))

    RunCallback.on_train_batch_end = see  # type: ignore[method-assign]
    Training.configure_gradient_clipping = gradients  # type: ignore[method-assign]
    modules: list[Training] = []
    begin = Training.on_train_start
    Training.on_train_start = lambda self: (modules.append(self), begin(self))[1]  # type: ignore[method-assign]
    config = configs.load(overrides=[*TINY, f"data={pages}", f"runs={place / 'runs'}", *words])
    try:
        record["metrics"] = loop.fit(config, resume=resume).metrics
    finally:
        record["weights"] = modules[0].state_dict() if modules else {}
        torch.save(record, place / f"seen-{mine.rank}.pt")


def equal(place: Path, pages: Path) -> None:
    """One process that accumulates two batches, then two ranks."""
    for name in ("alone", "ranks"):
        (place / name).mkdir()
    words = ("trainer.max_steps=3",)
    assert alone(lambda: train(place / "alone", pages, *words, "trainer.accumulate_grad_batches=2")) == 0
    assert spawn(2, lambda: train(place / "ranks", pages, *words)) == [0, 0]


def tasks(place: Path, pages: Path) -> None:
    """Four tasks of srun on two nodes."""
    words = ("trainer.max_epochs=1", "batch_size=1")
    assert spawn(4, lambda: train(place, pages, *words), srun=True) == [0] * 4


def refused(place: Path, pages: Path) -> None:
    """What ranks cannot agree on: pages, settings, a folder; all ranks report each, and none waits."""
    other = draw(place / "other", train=6)
    mine = lambda *words: lambda: train(place, other if detect_ranks().rank else pages, "trainer.max_steps=1", *words)  # noqa: E731
    assert spawn(2, mine()) == [1, 1]
    differ = lambda: train(place, pages, f"optim.lr=0.0{1 + detect_ranks().rank}")  # noqa: E731
    assert spawn(2, differ) == [1, 1]
    assert spawn(2, lambda: train(place, pages, "trainer.sync_batchnorm=true")) == [1, 1]
    (place / "file").write_text("")
    assert spawn(2, lambda: train(place, pages, f"runs={place / 'file'}")) == [1, 1]


def stopped(place: Path, pages: Path) -> None:
    """Two ranks to the end; two of which one gets SIGTERM, resumed by two; the same again, resumed by one."""
    words = ("trainer.max_steps=5", "trainer.accumulate_grad_batches=2", "recorder.on=false")
    (place / "whole").mkdir()
    assert spawn(2, lambda: train(place / "whole", pages, *words)) == [0, 0]
    for name, world in (("two", 2), ("one", 1)):
        here = place / name
        (here / "first").mkdir(parents=True)
        environment = spawn(2, lambda here=here: train(here / "first", pages, *words, stop=(1, 3)))
        assert environment == [143, 143], environment
        ((folder, record),) = run_folder.list_runs(here / "first" / "runs")
        assert record.status == "failure"
        again = lambda here=here, folder=folder: train(here, pages, resume=folder)  # noqa: E731
        assert (spawn(2, again) if world == 2 else [alone(again)]) == [0] * world


def figures(place: Path, _pages: Path) -> None:
    """63 pages, judged by 1 to 4 ranks, one of them with a broken share."""
    for world in (1, 2, 3, 4):
        work = lambda world=world: judge(place, world)  # noqa: E731
        assert ([alone(work)] if world == 1 else spawn(world, work)) == [0] * world


def judge(place: Path, world: int) -> None:
    rng = np.random.default_rng(7)
    shape = (63, len(scores.SIZES), len(scores.COLUMNS))
    counts = rng.integers(0, 9, shape) + rng.random(shape) * (rng.random(shape) < 0.3)
    mine = detect_ranks() if world > 1 else Ranks()
    with collectives.join_ranks(mine):
        turns = collectives.page_share(63, mine)
        running = collectives.sum_scores(mine, {page: counts[page] for page in turns if page is not None}, 63)
        np.save(place / f"state-{world}-{mine.rank}.npy", running.state)
        for twice in (0, 62):
            try:
                collectives.sum_scores(
                    mine, {page: counts[page] for page in [*turns, twice] if page is not None and page != 5}, 63
                )
            except OcrlabError as error:
                (place / f"refused-{world}-{mine.rank}.txt").write_text(str(error))


SCENARIOS = {work.__name__: work for work in (equal, tasks, stopped, figures, refused)}

if __name__ == "__main__":
    home = Path(sys.argv[2])
    folders = draw(home / "pages")
    for name in sys.argv[1].split(","):
        (home / name).mkdir()
        SCENARIOS[name](home / name, folders)
