"""Checkpoints that cannot be read, or are of another network."""

from __future__ import annotations

import argparse
from pathlib import Path

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import folder, torch


def save() -> Path:
    """Write a real checkpoint."""
    place = folder() / "last.ckpt"
    torch.save({"state_dict": torch.nn.Linear(64, 64).state_dict(), "step": 400}, place)
    return place


def resume_cut() -> None:
    place = save()
    place.write_bytes(place.read_bytes()[:7000])
    torch.load(place)


def resume_other() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 128))
    net.load_state_dict(torch.load(save())["state_dict"])


def resume_wider() -> None:
    torch.nn.Linear(64, 128).load_state_dict(torch.load(save())["state_dict"])


def resume_with_options() -> None:
    place = folder() / "last.ckpt"
    torch.save({"options": argparse.Namespace(lr=0.1), "step": 400}, place)
    torch.load(place)


CORRUPT, MISMATCH = ("ckpt.corrupt",), ("ckpt.mismatch",)
FAULTS = (
    Fault("ckpt_cut", "loads the first part of a checkpoint", "failed", CORRUPT, resume_cut),
    Fault("ckpt_keys", "loads into a network of other names", "failed", MISMATCH, resume_other),
    Fault("ckpt_sizes", "loads into a wider network", "failed", MISMATCH, resume_wider),
    Fault("ckpt_objects", "loads objects that weights_only refuses", "failed", CORRUPT, resume_with_options),
)
