"""Checkpoints of strangers: one error that says what was given, and no advice to let the file run code."""

import os
import resource

import pytest
import torch

from ocrlab.config.schema import Config
from ocrlab.errors import CheckpointError
from ocrlab.inference import checkpoint
from ocrlab.model.dbnet import Detector

CARD = checkpoint.card(Config(), 1, {})


class Runs:
    """What would run a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize(("write", "message"), [
    (lambda path: path.touch(), "Given: an empty file"),
    (lambda path: path.write_text("hello"), "starts with b'hello'"),
    (lambda path: torch.save({"state_dict": Runs()}, path), "could run code"),
    (lambda path: torch.save({"ocrlab": 1}, path), "was not written by ocrlab"),
    (lambda path: torch.save({"ocrlab": {"schema": 2}}, path), "newer ocrlab"),
    (lambda path: torch.save({"ocrlab": CARD}, path), "contains no detector"),
    (lambda path: torch.save({"ocrlab": CARD, "detector": {"a": 1}}, path), "contains no detector"),
    (lambda path: torch.save({"ocrlab": {"schema": 1}, "detector": {"a": torch.ones(1)}}, path), "no detector"),
    (lambda path: torch.save({"ocrlab": CARD, "detector": {"a": torch.ones(1)}}, path), "do not match"),
])  # fmt: skip
def test_a_file_that_is_no_checkpoint_is_a_single_clear_error(tmp_path, write, message: str) -> None:
    path = tmp_path / "some.ckpt"
    write(path)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_detector(path)
    assert message in str(caught.value)
    assert "weights_only" not in str(caught.value) and ".." not in str(caught.value).replace(str(path), "")


def test_a_cut_file_is_named_as_cut(tmp_path) -> None:
    path = tmp_path / "cut.ckpt"
    checkpoint.save({"ocrlab": CARD, "detector": {"a": torch.ones(1000)}}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match="cut off or damaged"):
        checkpoint.load(path)


def test_a_run_goes_on_with_the_network_that_it_began_with(tmp_path) -> None:
    path = tmp_path / "last.ckpt"
    checkpoint.save({"ocrlab": CARD}, path)
    assert checkpoint.to_resume(path, Config(batch_size=2))["step"] == 1
    with pytest.raises(CheckpointError, match="another network.*Given: width=64. Needed: width=128. Restore"):
        checkpoint.to_resume(path, Config(width=128))
    about = {name: value for name, value in CARD.items() if name != "config"}
    checkpoint.save({"ocrlab": about}, path)
    assert checkpoint.to_resume(path, Config())["step"] == 1, "an older one that does not say"


def test_the_checkpoint_of_a_run_that_was_sharded_is_read(tmp_path) -> None:
    """Older versions had trainer.strategy=fsdp, whose checkpoints hold whole weights."""
    path, config = tmp_path / "best.ckpt", Config(width=32)
    checkpoint.save_detector(Detector("resnet18_slim", "fpn", 32), path, config, 1, {})
    content = torch.load(path, weights_only=True)
    content["ocrlab"]["config"]["trainer"]["strategy"] = "fsdp"
    torch.save(content, path)
    model, read, _ = checkpoint.load_detector(path)
    assert (model.width, read) == (32, config)


def test_what_a_kill_left_half_written_is_removed_and_nothing_else(tmp_path) -> None:
    """Each kill in the middle of a save would leave a hundred megabytes, and a resumed run may be killed often."""
    (tmp_path / ".last.ckpt.123.tmp").write_bytes(b"half")
    checkpoint.save({"ocrlab": CARD}, tmp_path / "last.ckpt")
    (tmp_path / ".notes.tmp").touch()
    checkpoint.remove_torn_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes.tmp", "last.ckpt"]


def test_a_full_disk_is_reported_and_leaves_the_old_checkpoint(tmp_path) -> None:
    path = tmp_path / "last.ckpt"
    checkpoint.save({"a": torch.zeros(4)}, path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/last\.ckpt'"):
            checkpoint.save({"a": torch.zeros(1 << 18)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("change", ["complex", "sparse", "number", "meta"])
def test_weights_that_are_no_arrays_of_real_numbers_are_refused(tmp_path, change, recwarn):
    config = Config(encoder="resnet18_slim", width=32)
    model = Detector(config.encoder, config.decoder, config.width)
    path = tmp_path / "a.ckpt"
    checkpoint.save_detector(model, path, config, 1, {})
    content = torch.load(path, weights_only=True)
    name = next(name for name, tensor in content["detector"].items() if tensor.dim() == 4)
    tensor = content["detector"][name]
    changed = {"complex": tensor.to(torch.complex64), "sparse": tensor.to_sparse(), "number": 7}
    content["detector"][name] = changed.get(change, tensor.to("meta"))
    torch.save(content, path)
    recwarn.clear()
    with pytest.raises(CheckpointError):
        checkpoint.load_detector(path)
    assert not recwarn.list
