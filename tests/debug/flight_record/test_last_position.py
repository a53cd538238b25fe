"""Where a flight record ends, in one line."""

from __future__ import annotations

import os
from pathlib import Path

from ocrlab.debug.flight_record import last_position, ring_format, ring_writer
from ocrlab.debug.flight_record.worker_status import StatusPage


def recorded(run: Path, phase: str = "backward", *, rank: int = 0, names: tuple[str, ...] = ("a.png", "b.png")):
    (run / "flight").mkdir(parents=True, exist_ok=True)
    writer, _ = ring_writer.create(run / "flight", rank=rank, slots=4)
    writer.begin(ring_format.Step(22, 44, samples=[*names]))
    writer.stage("fpn")
    writer.phase(phase)
    return writer


def worker(run: Path, number: int, name: str, *, loader: int = 0, pid: int = 7) -> None:
    page = StatusPage(run / "flight", 0, 0, loader, number)
    page.sample(name)
    page.page[8:16] = pid.to_bytes(8, "little")


def test_step_phase_samples_and_workers_are_reported(tmp_path):
    assert last_position.position_text(tmp_path) == ""
    recorded(tmp_path)
    worker(tmp_path, 0, "page_040.png")
    worker(tmp_path, 1, "page_041.png", loader=1)
    assert last_position.position_text(tmp_path) == (
        "the record ends at step 22, backward; samples a.png, b.png; worker 0 on page_040.png"
    )


def test_loading_reports_the_batch_before_and_validation_its_own(tmp_path):
    writer = recorded(tmp_path, "data", names=("a.png",))
    worker(tmp_path, 0, "own.png", pid=os.getpid())
    text = last_position.position_text(tmp_path)
    assert text == (
        "the record ends at step 22, data (the next batch was being loaded); the batch before: a.png; "
        "the process itself on own.png"
    )
    writer.sample("validation batch 3: v.png")
    writer.phase("validation")
    assert last_position.position_text(tmp_path) == "the record ends at step 22, validation; validation batch 3: v.png"


def test_long_texts_are_shortened_to_a_single_line(tmp_path):
    recorded(tmp_path, "forward", names=("x\n`y`", *(f"{n}.png" for n in range(8))))
    for number in range(10):
        worker(tmp_path, number, "p" * 200)
    text = last_position.position_text(tmp_path)
    assert "step 22, forward, fpn; samples x 'y', 0.png, 1.png, 2.png and 5 more; worker 0 on ppp" in text
    assert text.endswith("… and 2 more workers") and "\n" not in text


def test_each_rank_of_the_last_start_is_reported(tmp_path):
    recorded(tmp_path, "loss")
    for rank in range(1, 6):
        recorded(tmp_path, "loss" if rank != 1 else "optimiser", rank=rank, names=())
    text = last_position.position_text(tmp_path)
    assert text.startswith(
        "the record of rank 0 ends at step 22, loss; samples a.png, b.png; that of rank 1 at step 22, o"
    )
    assert text.endswith("; and 2 more ranks")
    (tmp_path / "flight" / "ring-0-0.bin").write_bytes(b"torn")
    assert last_position.position_text(tmp_path).startswith("the record of rank 1 ends at step 22, optimiser;")
    assert last_position.has_live_process(tmp_path), "this process has written it"
