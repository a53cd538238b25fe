"""Disks that are full, limited, read-only, or not there."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import drop_root, folder, limit, small_disk, torch


def small_folder(*, read_only: bool = False) -> Path:
    """Return an empty folder on a disk of one megabyte."""
    place = folder()
    small_disk(str(place), "1m", read_only=read_only)
    return place


def cache_maps() -> None:
    place = small_folder()
    for page in range(100):
        (place / f"{page:04d}.npy").write_bytes(bytes(100_000))


def save_epoch() -> None:
    torch.save({"state_dict": torch.nn.Linear(1000, 1000).state_dict()}, small_folder() / "last.ckpt")


def write_log() -> None:
    limit(resource.RLIMIT_FSIZE, 50_000)
    with (folder() / "train.log").open("w") as log:
        for step in range(10_000):
            log.write(f"step {step} loss {1 / (step + 1):.4f}\n")


def write_log_natively() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as every program but Python has it
    write_log()


def train_with_report() -> None:
    """The report of a failure that fails itself: what matters is what came first."""
    place = folder() / "runs" / "2024-05-01"
    try:
        torch.nn.functional.cross_entropy(torch.randn(4, 5), torch.tensor([0, 1, 4, 11]))
    except Exception as error:
        (place / ".FAILURE").write_text(f"{type(error).__name__}\n")
        raise


def write_to_archive() -> None:
    (small_folder(read_only=True) / "results.csv").write_text("page,score\n")


def save_to_new_folder() -> None:
    torch.save({"step": 4}, folder() / "checkpoints" / "last.ckpt")


def save_as_other_user() -> None:
    place = folder()
    (place / "runs").mkdir(mode=0o500)
    place.chmod(0o755)
    drop_root()
    (place / "runs" / "metrics.csv").write_text("step,loss\n")


FULL, MISSING, PERMISSION = ("io.disk_full",), ("io.missing",), ("io.permission",)
ROOT = ("root",)
FAULTS = (
    Fault("disk_full", "writes a cache to a full disk", "failed", FULL, cache_maps, ROOT),
    Fault("save_full", "torch.save to a full disk", "failed", FULL, save_epoch, ROOT),
    Fault("file_size", "a file past its size limit", "failed", FULL, write_log),
    Fault("file_size_signal", "the same, SIGXFSZ kills", "killed", (*FULL, "ext.signal"), write_log_natively),
    Fault("lost_label", "a label error, then its report fails", "failed", ("data.index_range",), train_with_report),
    Fault("read_only", "writes to a read-only disk", "failed", PERMISSION, write_to_archive, ROOT),
    Fault("no_folder", "saves into a folder that is not there", "failed", MISSING, save_to_new_folder),
    Fault("other_user", "writes into the folder of another user", "failed", PERMISSION, save_as_other_user),
)
