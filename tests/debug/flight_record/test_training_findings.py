"""What the ranks of a training noticed, read as one, and where their records end, in one line."""

import os
from pathlib import Path

from ocrlab.debug.flight_record import last_position, ring_format, ring_writer, training_findings
from ocrlab.debug.flight_record.worker_status import StatusPage


def test_nothing_recorded_is_none_and_a_torn_file_too(tmp_path: Path) -> None:
    assert training_findings.read(tmp_path) is None
    (tmp_path / "flight").mkdir()
    (tmp_path / "flight/learned-0.json").write_text('{"schema": 1, "lin')
    assert training_findings.read(tmp_path) is None
    assert not training_findings.ended_early(tmp_path)


def test_a_finding_of_all_ranks_is_reported_once(tmp_path: Path) -> None:
    flight = tmp_path / "flight"
    flight.mkdir()
    for rank, lines in enumerate((["a", "b"], ["a", "c"])):
        training_findings.write(flight, rank, 1, lines, {0: 7, 8: 9}, cut=rank == 1)
    assert training_findings.read(tmp_path) == ["rank 0: a", "rank 0: b", "rank 1: c"]
    assert training_findings.ended_early(tmp_path)
    training_findings.set_aside(flight, 1, 2)
    assert training_findings.read(tmp_path) == ["a", "b"]


def test_what_belongs_to_an_earlier_start_is_set_aside_and_not_lost(tmp_path: Path) -> None:
    flight, incident = tmp_path / "flight", tmp_path / "incident"
    flight.mkdir()
    incident.mkdir()
    training_findings.write(flight, 0, 0, ["the first"], {}, cut=False)
    training_findings.write(flight, 1, 0, ["of rank 1"], {}, cut=False)
    (flight / "replay.json").write_text("{}")
    (incident / "replay.json").write_text("{}")
    training_findings.set_aside(flight, 0, 1)
    assert training_findings.read(tmp_path) == ["of rank 1"]
    assert not [*flight.glob("replay*.json"), *incident.glob("replay*.json")]
    assert "the first" in (flight / "start-0/learned-0.json").read_text()
    assert {path.name for path in (flight / "start-0").iterdir()} >= {"replay.json", "incident-replay.json"}


def test_of_two_recordings_at_once_the_later_one_is_read_whichever_ends_last(tmp_path: Path) -> None:
    flight = tmp_path / "flight"
    flight.mkdir()
    for start in (0, 1):
        (flight / f"ring-0-{start}.bin").touch()
    training_findings.write(flight, 0, 1, ["of the later"], {}, cut=False)
    training_findings.write(flight, 0, 0, ["of the earlier"], {}, cut=False)
    assert training_findings.read(tmp_path) == ["of the later"]
    assert "of the earlier" in (flight / "start-0/learned-0.json").read_text()


def test_ranks_with_other_weights_are_named(tmp_path: Path) -> None:
    flight = tmp_path / "flight"
    flight.mkdir()
    training_findings.write(flight, 0, 1, [], {0: 7, 1: 8, 2: 9}, cut=False)
    training_findings.write(flight, 1, 1, [], {0: 7, 1: 5}, cut=False)
    findings = training_findings.read(tmp_path)
    assert findings is not None
    assert findings[0].startswith("the 2 ranks hold different weights from micro-batch 1 on:")


def test_ranks_that_draw_the_same_batches(tmp_path: Path) -> None:
    (tmp_path / "flight").mkdir()
    for other, count in (((1, 2, 3), 1), ((1, 2, 4), 0)):
        for rank, batches in enumerate(((1, 2, 3), other)):
            training_findings.write(tmp_path / "flight", rank, 1, [], {0: 7}, batches=batches, cut=False)
        lines = training_findings.diverged_ranks(tmp_path)
        assert len(lines) == count and all("DistributedSampler" in line for line in lines)


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
