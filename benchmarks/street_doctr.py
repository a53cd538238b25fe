"""The docTR side of `street.py`: train db_mobilenet_v3_large from scratch, then predict. Run by docTR's own Python.

Network, targets, loss, augmentation, optimizer and schedule are docTR's, as in its references/detection/train.py
(Adam 0.001, polynomial decay, batch 2, gradient clipped at 5). Four things are done for it that it does not do itself:
canvases of the pages' own shape instead of squares (which are 44 % padding here); bf16 and channels-last memory, which
nearly halve its step on a CPU that has AMX (1.06 s instead of 1.87 s of one thread, batch 2 at 640 x 384); a mask over
the regions that do not count; and batches without text are passed over, because its loss breaks on them.

Shapes: B batch, h w map pixels, N boxes. Reads one JSON, writes one JSON; knows nothing of ocrlab.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from doctr import transforms as T
from doctr.datasets import DetectionDataset
from doctr.io import read_img_as_tensor
from doctr.models import detection
from doctr.utils import Sample
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import Normalize, RandomGrayscale, RandomPhotometricDistort

MEAN, STD = (0.798, 0.785, 0.772), (0.264, 0.2749, 0.287)
LR, CLIP = 1e-3, 5.0  # docTR's defaults


def main() -> None:
    """Read the job, train for its CPU seconds, predict its pages, write what was found."""
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("job", type=Path, help="JSON written by street.py")
    job = json.loads(command.parse_args().job.read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    random.seed(job["seed"])
    np.random.seed(job["seed"])  # noqa: NPY002  docTR draws from it
    torch.manual_seed(job["seed"])
    model = detection.db_mobilenet_v3_large(
        pretrained=False, pretrained_backbone=False, assume_straight_pages=False, class_names=["words"]
    )
    mask_ignored(model)
    model = model.to(memory_format=torch.channels_last)
    about = train(model, job)
    pages = predict(model, job)
    record = {"settings": job["settings"], "default": job["default"], "pages": pages, "about": about}
    Path(job["out"]).write_text(json.dumps(record), encoding="utf-8")


def mask_ignored(model: Any) -> None:
    """Let the class "ignored" of a target, if it is there, be neither text nor background."""
    published = model.build_target

    def build(target: list[dict[str, Any]], shape: Any) -> Any:
        words = [{"words": t.get("words", np.zeros((0, 4, 2), np.float32))} for t in target]
        shrunk, mask, border, border_mask = published(words, shape)
        for i, t in enumerate(target):
            for quad in t.get("ignored", ()):
                hidden = np.zeros(mask.shape[-2:], np.uint8)
                cv2.fillPoly(hidden, [np.round(quad * (shape[-1], shape[-2])).astype(np.int32)], 1)
                mask[i, 0] &= ~((hidden == 1) & (shrunk[i, 0] == 0))
        return shrunk, mask, border, border_mask

    model.build_target = build


def train(model: Any, job: dict[str, Any]) -> dict[str, float]:
    """Train for `cpu_seconds` of this process, loading included; return steps, seconds and the last losses' mean."""
    batches = loader(job)
    optimizer = torch.optim.Adam(model.parameters(), LR, betas=(0.95, 0.999), eps=1e-6)
    normalize = Normalize(mean=MEAN, std=STD)
    steps, losses, passed = 0, [], 0
    model.train()
    start, begun = time.monotonic(), time.process_time()
    for images, target in endless(batches):
        spent = (time.process_time() - begun) / job["cpu_seconds"]
        if spent >= 1 or (job["steps"] and steps >= job["steps"]):
            break
        for group in optimizer.param_groups:
            group["lr"] = LR * (1 - spent)  # PolynomialLR of power 1
        optimizer.zero_grad()
        try:
            with half(job):
                loss = model(normalize(images).to(memory_format=torch.channels_last), target)["loss"]
        except UnboundLocalError:  # no text, or no border of text, in the whole batch
            passed += 1
            continue
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        steps += 1
        losses.append(float(loss.detach()))
    mean = float(np.mean(losses[-50:])) if losses else float("nan")
    seconds = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - begun}
    return {"steps": steps, "passed_over": passed, **seconds, "loss": mean}


def endless(batches: Any) -> Iterator[Any]:
    """Yield batches for ever, one epoch after the other."""
    while True:
        yield from batches


def half(job: dict[str, Any]) -> Any:
    """Return the context in which the network computes in bf16, or nothing."""
    return torch.autocast("cpu", torch.bfloat16) if job["bf16"] else contextlib.nullcontext()


def loader(job: dict[str, Any]) -> Any:
    """Return the batches with docTR's augmentations; the labels lie beside the job in the form that docTR reads."""
    labels = {page["name"]: page["polygons"] for page in job["train"] if any(page["polygons"].values())}
    file = Path(job["out"]).with_suffix(".labels.json")
    file.write_text(json.dumps({name: {"polygons": polygons} for name, polygons in labels.items()}), encoding="utf-8")
    pixels = T.OneOf(
        [
            T.SampleCompose(
                [T.RandomApply(T.ColorInversion(), 0.3), T.RandomApply(T.GaussianBlur(sigma=(0.5, 1.5)), 0.2)]
            ),
            T.SampleCompose(
                [
                    T.RandomApply(T.RandomShadow(), 0.3),
                    T.RandomApply(T.GaussianNoise(), 0.1),
                    T.RandomApply(T.GaussianBlur(sigma=(0.5, 1.5)), 0.3),
                    T.ImageTorchvisionTransform(RandomGrayscale(p=0.15)),
                ]
            ),
            T.ImageTorchvisionTransform(RandomPhotometricDistort(p=0.3)),
            lambda x: x,
        ]
    )
    both = T.SampleCompose(
        [
            T.RandomHorizontalFlip(0.15),
            T.OneOf(
                [
                    T.RandomApply(T.RandomCrop(ratio=(0.6, 1.33)), 0.25),
                    T.RandomResize(scale_range=(0.4, 0.9), preserve_aspect_ratio=0.5, symmetric_pad=0.5, p=0.25),
                ]
            ),
            T.Resize(tuple(job["canvas"]), preserve_aspect_ratio=True, symmetric_pad=True),
        ]
    )
    data = DetectionDataset(job["images"], str(file), use_polygons=True, img_transforms=pixels, sample_transforms=both)
    batch = job["batch"]
    return DataLoader(data, batch, shuffle=True, drop_last=True, collate_fn=data.collate_fn)


def predict(model: Any, job: dict[str, Any]) -> dict[str, list[Any]]:
    """Return of each page, for each (bin_thresh, box_thresh) of `settings`, quads in page pixels."""
    model.eval()
    height, width = job["canvas"]
    resize = T.Resize((height, width), preserve_aspect_ratio=True, symmetric_pad=True)
    normalize, post, predictions = Normalize(mean=MEAN, std=STD), model.postprocessor, {}
    for name in job["predict"]:
        image = read_img_as_tensor(str(Path(job["images"]) / name), dtype=torch.float32)
        canvas = resize(Sample(image=image)).image[None]  # (1, 3, h, w)
        with torch.inference_mode(), half(job):
            heat = model(normalize(canvas), return_model_output=True)["out_map"].float()
        maps = heat.permute(0, 2, 3, 1).numpy()  # (1, h, w, 1)
        page = (image.shape[-1], image.shape[-2])  # width, height
        predictions[name] = []
        for post.bin_thresh, post.box_thresh in job["settings"]:
            quads = np.asarray(post(maps)[0][0])[:, :4] * (width, height)  # (N, 4, 2) in canvas pixels
            predictions[name].append(np.round(off_canvas(quads, page, (width, height)), 2).tolist())
    return predictions


def off_canvas(quads: Any, page: tuple[int, int], canvas: tuple[int, int]) -> Any:
    """Return quads (N, 4, 2) of a symmetrically padded canvas in pixels of the page, both (width, height)."""
    scale = min(canvas[0] / page[0], canvas[1] / page[1])
    padding = np.ceil((np.array(canvas) - (np.array(page) * scale).astype(int)) / 2)  # as T.Resize pads
    return np.clip((quads - padding) / scale, 0, page)


if __name__ == "__main__":
    main()
