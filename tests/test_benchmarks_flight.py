"""What flight.py compares and how it judges: the truth beside the ring, planted faults, rows and exit status."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ocrlab.debug.flight_record import ring_writer
from ocrlab.debug.recorder import rng_state

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a file of benchmarks/ as its siblings do."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_the_truth_keeps_its_last_word_and_whole_lines(part: Any, tmp_path: Path) -> None:
    flight_truth = part("flight_truth")
    truth = flight_truth.Truth(tmp_path)
    for number in range(3):
        truth.now(2, f"sample {number}")
        truth.say("loss", micro=number, value=(0.1 * number).hex())
    with (tmp_path / "truth.jsonl").open("a") as file:
        file.write('{"kind": "loss", "mic')
    assert flight_truth.slots(tmp_path) == {2: flight_truth.Word(3, os.getpid(), "sample 2")}
    assert [line["micro"] for line in flight_truth.lines(tmp_path, "loss")] == [0, 1, 2]


def test_faults_are_drawn_by_seed_and_every_program_gets_each(part: Any, tmp_path: Path) -> None:
    faults, replays = part("flight_faults"), part("flight_replays")
    one, same, other = (faults.draw(tmp_path, "loop", "raise", "backward", seed) for seed in (1, 1, 2))
    assert one == same != other
    assert faults.read(one.save()) == one
    cases = replays.cases(3)
    assert len(cases) == 3 * len(faults.FAULTS)
    for fault, phase, programs in faults.FAULTS:
        assert {case[0] for case in cases if case[1:3] == (fault, phase)} == set(programs)
    assert {case[1] for case in replays.cases(1, ["segfault"])} == {"segfault"}


@pytest.mark.parametrize(
    ("fault", "phase"), [("inf_weight", "forward"), ("zero_root", "backward"), ("raise", "forward")]
)
def test_a_planted_fault_comes_where_it_was_planted_and_nowhere_else(
    part: Any, tmp_path: Path, fault: str, phase: str
) -> None:
    faults, pages, truth = part("flight_faults"), part("flight_pages"), part("flight_truth").Truth(tmp_path)
    plan = faults.Plan(str(tmp_path), "loop", fault, phase, "merge.0.mix", page=2, step=-1, batch=4)
    net = pages.Net()
    planted = faults.Planted(net, net, plan, truth)
    data = pages.Scans(plan, truth)

    def loss(*numbers: int) -> torch.Tensor:
        items = [data[number] for number in numbers]
        logits = net(torch.stack([item["pixels"] for item in items]), torch.zeros(len(items), dtype=torch.long))
        return logits.square().mean()

    if fault == "inf_weight":  # a step of its own and no page
        assert bool(loss(0, 1).isinf() | loss(0, 1).isnan())
        planted.clock = lambda: 7
        return
    loss(0, 1).backward()
    assert all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None)
    if fault == "raise":
        with pytest.raises(RuntimeError, match="run of length 0"):
            loss(0, 2)
    else:
        bad = loss(0, 2)
        bad.backward()
        assert bool(bad.isfinite()) and not bool(net.merge[0].mix.weight.grad.isfinite().all())


def answer(**fault: Any) -> dict[str, Any]:
    return {"fault": {"path": "net.stages.0.down.0", "op": "aten::div", "names": ["scan-0003.png"], **fault}}


def test_only_the_right_module_op_and_sample_count(part: Any, tmp_path: Path) -> None:
    faults, replays = part("flight_faults"), part("flight_replays")
    plan = faults.Plan(str(tmp_path), "lightning", "zero_area", "forward", "net.stages.0.down.0", page=3)

    def right(record: dict[str, Any]) -> set[str]:
        return {name for name, good in replays.judged(plan, record).items() if good}

    assert right(answer(phase="forward")) == {"module", "op", "sample", "phase"}
    assert right({}) == set()
    assert right(answer(phase="backward", path="net.stages.1.down.0")) == {"op", "sample"}
    assert right(answer(phase="forward", names=["scan-0003.png", "scan-0004.png"], op="aten::mul")) == {
        "module",
        "phase",
    }
    assert right(answer(phase="forward", path="stages.0.down.0")) >= {"module"}
    late = replays.Found(plan, {}, replays.judged(plan, answer(phase="forward")), 61.0)
    assert not replays.complete(late)
    assert replays.summary([late])[-1] == ("in all", 1, 1, 1, 1, 1, 0, "61 s")


def test_losses_are_compared_with_what_the_program_said(part: Any, tmp_path: Path) -> None:
    replays = part("flight_replays")
    said = [(1, None, 0, "0x1p+0"), (1, None, 1, "0x1p+1"), (2, "job", 0, "0x1p+0"), (2, "job", 1, "0x1.1p+1")]
    lines = [
        json.dumps({"kind": "loss", "pid": pid, "replay": replay, "micro": micro, "value": value})
        for pid, replay, micro, value in [*said, (3, "later", 1, "0x1p+1")]
    ]
    (tmp_path / "truth.jsonl").write_text("\n".join(lines) + "\n")
    assert replays.compared(tmp_path) == (2, 1)


def drawn(name: str) -> None:
    """Let one generator move."""
    {"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(1)}[name]()


@pytest.mark.parametrize(("lie", "wrong"), [
    ({}, set()),
    ({"samples": ["scan-0002.png"]}, {"samples of a step"}),
    ({"loss": 0.25}, {"loss of a step"}),
    ({"lr": 0.2}, {"learning rate of a step"}),
    ({"lr": None}, {"learning rate of a step"}),
    ({"random": "python"}, {"random states of python"}),
    ({"random": "numpy"}, {"random states of numpy"}),
    ({"random": "torch"}, {"random states of torch"}),
    ({"random": ""}, {"no random states of numpy, python, torch"}),
])  # fmt: skip
def test_a_ring_that_lies_is_found_out(part: Any, tmp_path: Path, lie: dict[str, Any], wrong: set[str]) -> None:
    kills, faults, told = part("flight_kills"), part("flight_faults"), part("flight_truth")
    truth, before = told.Truth(tmp_path), rng_state.take()
    (tmp_path / "run" / "flight").mkdir(parents=True)
    writer, _ = ring_writer.create(tmp_path / "run" / "flight", slots=8)
    for micro in range(3):
        truth.say("batch", micro=micro, names=["scan-0001.png"], lr=(0.1).hex(), states=told.states())
        truth.now(0, f"{micro} forward")
        truth.say("loss", micro=micro, value=(0.5).hex())
        made = {"samples": ["scan-0001.png"], "lr": 0.1, "loss": 0.5, **(lie if micro == 1 else {})}
        if made.get("random"):
            drawn(made["random"])
        states = {} if made.get("random") == "" else rng_state.take()
        writer.begin(ring_writer.Step(micro, micro, samples=made["samples"], lr=made["lr"], random=states))
        writer.loss(made["loss"])
        drawn("torch")
    writer.close()
    score = kills.Score()
    try:
        kills.compare(faults.Plan(str(tmp_path), "loop"), score)
    finally:
        rng_state.put(before)
    assert set(score.wrong) == wrong and (score.steps, score.states, score.phases) == (3, 3, 1)


@pytest.mark.parametrize(("program", "word", "further", "phase", "right"), [
    ("loop", "forward", 0, "loss", True),
    ("loop", "forward", 0, "backward", False),
    ("loop", "backward", 0, "backward", True),
    ("loop", "backward", 0, "forward", False),
    ("loop", "backward", 0, "optimiser", False),
    ("lightning", "backward", 0, "optimiser", True),
    ("lightning", "backward", 0, "forward", True),
    ("lightning", "forward", 0, "loss", False),
    ("train", "backward", 0, "forward", False),
    ("train", "backward", 0, "data", False),
    ("train", "optimiser", 0, "backward", False),
    ("loop", "optimiser", 1, "forward", False),
    ("loop", "done", 1, "forward", True),
    ("loop", "done", 1, "backward", False),
    ("loop", "done", 2, "forward", False),
])  # fmt: skip
def test_a_phase_is_right_only_where_the_program_can_have_been(
    part: Any, tmp_path: Path, program: str, word: str, further: int, phase: str, right: bool
) -> None:
    kills, faults = part("flight_kills"), part("flight_faults")
    part("flight_truth").Truth(tmp_path).now(0, f"7 {word}")
    score, now = kills.Score(), ring_writer.Step(7, 7 + further, phase=phase)
    assert kills.right_phase(faults.Plan(str(tmp_path), program), SimpleNamespace(now=now), score) is right
    assert bool(score.wrong) is not right


@pytest.mark.parametrize(("state", "told", "right"), [
    ("begun", "scan-0003.png", True),
    ("begun", "", False),
    ("begun", "scan-0002.png", False),
    ("done", "", True),  # a page of the next epoch, of which no sample has begun
    ("done", "scan-0004.png", True),
])  # fmt: skip
def test_the_sample_of_a_process_that_loads_itself(
    part: Any, tmp_path: Path, state: str, told: str, right: bool
) -> None:
    kills, faults = part("flight_kills"), part("flight_faults")
    part("flight_truth").Truth(tmp_path).now(1, f"3 scan-0003.png {state}")
    flight = SimpleNamespace(sample="", workers=[SimpleNamespace(worker=0, pid=1, sample=told)])
    assert kills.right_workers(faults.Plan(str(tmp_path), "loop"), flight, kills.Score()) is right


def test_bisect_counts_what_is_not_right(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bisect = part("flight_bisect")
    monkeypatch.setattr(bisect, "once", lambda needed, how, rate: ("right", 5, 3))
    made = {"ends": ("right",), "runs": 5}

    def drawn(case: Any, dice: Any) -> tuple[str, int]:
        return dice.choice(made["ends"]), made["runs"]

    monkeypatch.setattr(bisect.bisect_search, "drawn", drawn)

    def met() -> list[bool | None]:
        return [row[3] for row in bisect.rows(SimpleNamespace(smoke=True), [])]

    assert met() == [True] * 6
    made["runs"] = 6  # one too many for a single culprit, none for a pair
    assert met() == [True, False, True, True, True, True]
    made.update(ends=("right", "wrong"), runs=5)
    assert met() == [True, False, True, False, True, False]
    made["ends"] = ("right", "not settled")  # no answer is no wrong one
    assert met() == [True, False, True, False, True, True]


def test_one_miss_makes_the_exit_status_1(part: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    flight = part("flight")
    monkeypatch.setattr(sys, "argv", ["flight.py", "--only", "cost"])

    def broken(*_: Any) -> Any:
        raise SystemError("gone")

    for measure, status, words in (
        (lambda *_: [("a", "b", "c", True)], 0, "met"),
        (lambda *_: [("a", "b", "c", False)], 1, "NOT met"),
        (broken, 1, "not measured: SystemError: gone"),
    ):
        monkeypatch.setitem(flight.ROWS, "cost", measure)
        assert flight.main() == status
        assert words in capsys.readouterr().out


def test_quiet_rounds_are_chosen_by_a_turn_that_is_not_compared(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = part("flight_cost")
    calm = [[(20.1, 10.2), (20.0, 10.0), (20.0, 10.1)]] * 30  # with, without, without again
    loud = [[(9.0, 5.0), (20.0, 10.0), (23.0, 10.0)]] * 10
    monkeypatch.setattr(cost, "switched", lambda _: [*calm, *loud])
    quiet, every = cost.recorder(40)
    assert (quiet.rounds, every.rounds) == (30, 40)
    assert [quiet.median, quiet.mean, quiet.cpu, quiet.nothing] == pytest.approx([0.1, 0.1, 0.2, 0.0])
    assert quiet.step == 20.0 and quiet.error == pytest.approx(0.0, abs=1e-9) and every.mean < 0
    monkeypatch.setattr(cost, "switched", lambda _: [*calm[:3], *loud])
    with pytest.raises(ValueError, match="3 of 40 rounds were quiet"):
        cost.recorder(40)


def test_outliers_of_both_ends_are_left_out(part: Any) -> None:
    cost = part("flight_cost")
    assert cost.trimmed([*range(100), 10**9]) == [*range(5, 96)]
    assert cost.trimmed([1.0, 3.0]) == [1.0, 3.0]


def test_a_recorder_that_is_taken_out_of_a_program_hears_nothing(part: Any, tmp_path: Path) -> None:
    from ocrlab.debug.recorder.lightning_callback import recording

    cost = part("flight_cost")
    model, optimizer, batches = cost.parts(8)
    with recording(tmp_path, model, optimizer, snapshot_every=cost.NEVER) as rec:
        source = rec.batches(itertools.cycle(batches))
        cost.mean_step(model, optimizer, source, 6, rec)  # the fifth is looked at, the sixth no longer
        before = rec.tape.writer.count
        cost.switch(rec, model, False)
        assert not rec.undo and not rec.tape.stages.undo and not model._forward_hooks
        cost.mean_step(model, optimizer, iter(batches), 3, None)
        assert rec.tape.writer.count == before == 6
        cost.switch(rec, model, True)
        assert rec.undo and rec.tape.stages.undo


def test_the_gpu_victim_needs_nothing_but_its_words(part: Any) -> None:
    cuda = part("flight_cuda")
    assert set(cuda.KERNELS) == {"misaligned", "illegal"}
    page = cuda.Pages(3)[3]
    assert page["source"] > 8 and page["name"] == "scan-3.png"
    net = cuda.Net("oom")
    assert net(page["pixels"][None], torch.zeros(1, dtype=torch.long)).shape == (1, 1, 32, 32)
