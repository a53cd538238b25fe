"""Page order and crops: pure functions of seed, epoch and page."""

import contextlib
import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ocrlab.config import schema as configs
from ocrlab.data import dataset
from ocrlab.data.dataset import Crops, PageOrder, collate
from ocrlab.data.formats.reader import load
from ocrlab.errors import DataError

SAMPLES = Path(__file__).parents[2] / "data_samples"


@pytest.fixture(scope="module")
def config():
    return configs.load(overrides=["crop=128", "runtime.cache=none"])


@pytest.fixture(scope="module")
def samples():
    return load(SAMPLES, "val").samples[:4]


def test_every_epoch_sees_every_page_once():
    walk = list(PageOrder(7, seed=3, stop=21))
    for epoch in range(3):
        assert sorted(page for e, page in walk if e == epoch) == list(range(7))
    assert [p for e, p in walk if e == 0] != [p for e, p in walk if e == 1]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_ranks_share_the_epochs_and_no_page_is_lost_or_repeated(world, batch):
    """Turn by turn the batches of all ranks are those of one process; also after a resume by another number of them."""
    steps, pages = 12, 11
    together = [list(PageOrder(pages, 3, steps * batch, batch=batch, rank=r, world=world)) for r in range(world)]
    turns = [together[r][k * batch :][:batch] for k in range(steps) for r in range(world)]
    everything = [place for turn in turns for place in turn]
    assert everything == list(PageOrder(pages, 3, steps * batch * world))
    for epoch in range(len(everything) // pages):
        assert sorted(page for e, page in everything if e == epoch) == list(range(pages))
    done = 5
    done_crops = done * batch * world
    for others in (1, 2, 3):
        rest: list = [
            list(
                PageOrder(
                    pages, 3, steps * batch, done * batch, batch=batch, rank=r, world=others, first_position=done_crops
                )
            )
            for r in range(others)
        ]
        assert {len(positions) for positions in rest} == {(steps - done) * batch}
        turns = [rest[r][k * batch :][:batch] for k in range(steps - done) for r in range(others)]
        after = [place for turn in turns for place in turn]
        assert after == list(PageOrder(pages, 3, done_crops + len(after), done_crops))


def test_a_signal_to_all_processes_does_not_take_the_workers_first():
    loader = DataLoader(range(64), num_workers=2, worker_init_fn=dataset.worker_init(), prefetch_factor=1)
    walk = iter(loader)
    first = [next(walk), next(walk)]  # one from each worker: both are up
    workers = walk._workers
    subprocess.run(["kill", "-TERM", *(str(worker.pid) for worker in workers)], check=True)  # somebody else's
    assert torch.equal(torch.cat([*first, *walk]), torch.arange(64)), "the training goes on until it has saved"
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0


LEFT = """
import sys
from torch.utils.data import DataLoader
from ocrlab.data import dataset

if __name__ == "__main__":
    begin = dataset.worker_init()
    walk = iter(DataLoader(range(64), num_workers=2, worker_init_fn=begin, multiprocessing_context=sys.argv[1]))
    held = [next(walk), next(walk), walk]  # one from each worker: both are up
    held.append(held)  # as a traceback holds its frames: nothing ends the workers before Python does
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_program_that_leaves_with_its_workers_up_ends(tmp_path, method):
    script = tmp_path / "left.py"
    script.write_text(LEFT)
    done = subprocess.run([sys.executable, script, method], timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_second_signal_of_others_ends_a_worker():
    walk = iter(DataLoader(range(64), num_workers=1, worker_init_fn=dataset.worker_init()))
    next(walk)
    (worker,) = walk._workers
    ask = ["kill", "-TERM", str(worker.pid)]
    subprocess.run(ask, check=True)
    worker.join(0.5)
    assert worker.is_alive()
    with contextlib.suppress(RuntimeError):  # torch's handler of SIGCHLD may be there, and say that it was killed
        for _ in range(60):  # on a busy machine two that come close together are one
            subprocess.run(ask)
            worker.join(0.5)
            if not worker.is_alive():
                break
    worker.join(30)
    assert worker.exitcode == -signal.SIGTERM


def test_a_crop_is_a_function_of_seed_epoch_and_page(samples, config):
    crops = Crops(samples, config)
    first, again, other = (crops[i] for i in ((0, 1), (0, 1), (1, 1)))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1].shrink_map, again[1].shrink_map)
    assert (first[0] != other[0]).any()


def test_workers_change_nothing(samples, config):
    def batches(workers):
        order = PageOrder(len(samples), 0, 8)
        return list(DataLoader(Crops(samples, config), 2, sampler=order, num_workers=workers, collate_fn=collate))

    for a, b in zip(batches(0), batches(2), strict=True):
        assert torch.equal(a.images, b.images)
        assert all(torch.equal(x, y) for x, y in zip(a.maps, b.maps, strict=True))
        assert a.pages == b.pages


def test_batch_shapes_and_memory_format(samples, config):
    crops = Crops(samples, config)
    batch = collate([crops[0, 0], crops[0, 1]])
    assert batch.images.shape == (2, 3, 128, 128)
    assert batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert all(m.shape == (2, 1, 128, 128) for m in batch.maps)
    assert len(batch.pages) == 2


def test_a_bad_page_is_replaced_and_reported_unless_strict(samples, config, monkeypatch):
    real = dataset.read_image
    bad = samples[1].image

    def read(path, exif=False):
        if path == bad:
            raise DataError("broken", got=str(path))
        return real(path, exif=exif)

    monkeypatch.setattr(dataset, "read_image", read)
    crop, _, name, problems = Crops(samples, config)[0, 1]
    assert crop.shape == (128, 128, 3)
    assert name == samples[2].name
    assert bad.stem in problems[0]
    strict = configs.load(overrides=["crop=128", "runtime.cache=none", "runtime.strict=true"])
    with pytest.raises(DataError, match="broken"):
        Crops(samples, strict)[0, 1]


def test_targets_lie_where_the_text_is(samples, config):
    """On average over many crops the shrunk text has the middle of the text: no half pixel gets lost on the way."""
    rng = np.random.default_rng(0)
    box = np.array([[100, 100], [260, 100], [260, 130], [100, 130]], np.float32)
    page = dataclasses.replace(samples[0], polygons=(box,), ignored=np.zeros(1, bool), texts=("a",))
    still = ["crop=384", "augment.rotate=0", "augment.around_text=1", "augment.noise=0", "augment.degrade=0"]
    plain = configs.load(overrides=still)
    apart = []
    for _ in range(60):
        image = np.full((400, 400, 3), 255, np.uint8)
        image[100:131, 100:261] = 0
        crop, maps = dataset.training_crop(rng, image, page, plain)
        dark, text = np.argwhere(crop[..., 0] < 100), np.argwhere(maps.shrink_map > 0)
        if len(text) and dark.min() > 0 and dark.max() < 383:
            apart.append(text.mean(axis=0) - dark.mean(axis=0))
    assert len(apart) > 20
    assert np.abs(np.mean(apart, axis=0)).max() < 0.2
