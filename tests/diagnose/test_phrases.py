"""What people say of a failure, in any order, inflection and language, and what is no failure by itself."""

from __future__ import annotations

import pytest

from ocrlab.diagnose import catalogue, phrases
from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, Verdict

SAID = (  # written apart from the phrases; each cause in words that its message does not have
    ("The IT department will not touch the GPU driver from 2020: it errors out with current pytorch", "driver.too_old"),
    ("driver outdated for cu130 build", "driver.too_old"),
    ("Since the Ubuntu auto update ran overnight, nvidia-smi prints that NVML and driver do not match", "driver.state"),
    ("slurm job lands on gpu node without --gres, torch counts zero devices", "driver.no_visible_device"),
    ("GPU in exclusive mode, second process cannot make a context", "driver.device_busy"),
    ("poetry resolves torch to +cpu, GPU unused", "build.cpu_only"),
    ("Old Tesla K80, newest torch does not ship kernels for it any more", "build.arch"),
    ("two cudnn versions in my environment, paddle and torch fight each other", "build.cuda_libraries"),
    ("torchaudio breaks after torch upgrade", "build.torchvision"),
    ("numpy 2 broke everything compiled before", "build.abi"),
    ("it wants lanms package but pip cannot import it", "build.missing_package"),
    ("chamfer extension does not compile, THC not found in new torch", "build.compile"),
    ("dependency conflict, conda solves environment without end", "build.install"),
    ("slim python image: cv2 wants libGL", "build.system_libs"),
    ("the wheel needs AVX2 which our old Opteron does not offer", "build.cpu_isa"),
    ("illegal access when model sits on cuda:1", "kernel.illegal_address"),
    ("error 715 from cuda", "kernel.illegal_instruction"),
    ("my kernel casts a float pointer to float4 and gets misaligned address", "kernel.misaligned"),
    ("unspecific launch failure appears from time to time", "kernel.launch_failure"),
    ("Windows resets the display driver when a long kernel runs (TDR)", "kernel.launch_timeout"),
    ("my labels go from 1 to 10 and nll loss asserts on GPU", "data.index_range"),
    ("character from transcription isn't in the dict of the recognizer", "data.annotation"),
    ("half-downloaded tar shard breaks webdataset", "data.corrupt"),
    ("default collate chokes since my images differ in size", "data.sample"),
    ("only 4GB on my card, does not fit", "gpumem.capacity"),
    ("reserved memory is much more than allocated, allocation of 20 MB fails", "gpumem.fragmentation"),
    ("somebody else's process eats the card on our shared server", "gpumem.foreign"),
    ("each iteration adds 50MB to gpu memory till it dies", "gpumem.leak"),
    ("paging file too small on windows when workers start", "host.alloc_fail"),
    ("pids cgroup limit reached, fork fails", "host.thread_limit"),
    ("ulimit -n 1024 reached by the data loader", "host.fd_limit"),
    ("NFS mount went stale in the middle of training", "io.device"),
    ("jupyter port busy", "io.port"),
    ("no rights to write in the output directory", "io.permission"),
    ("weights_only default change makes torch.load refuse my old checkpoint", "ckpt.corrupt"),
    ("pretrained model doesn't correspond to my config", "ckpt.mismatch"),
    ("DataLoader worker gets segfault, happens in libjpeg", "loader.worker_crash"),
    ("custom exception in worker makes main process wait eternally", "loader.hang_unpicklable"),
    ("used .cuda() in collate with num_workers=4 and it throws", "loader.cuda_in_fork"),
    ("job hit the walltime of the queue", "scheduler.kill"),
    ("loading torch takes 15 minutes on lustre", "hang.import"),
    ("comet experiment upload keeps the script from ending", "hang.tracker"),
    ("behind corporate proxy wandb login fails", "tracker.network"),
    ("first tensor to gpu needs 20 minutes", "hang.cuda_init"),
    ("background job suspended by tty input", "hang.stopped"),
    ("target text longer than time steps", "loss.ctc_length"),
    ("GradScaler: unscale_ already called", "user.amp"),
    ("inductor backend fails to lower op", "user.compile"),
    ("two torchrun jobs on same host collide at the master port", "dist.port"),
    ("launched 8 processes on a 4 gpu box", "dist.misconfig"),
    ("some params unused in forward, ddp errors", "dist.unused_params"),
    ("mce hardware error cpu, random crashes in every program", "hw.host"),
    ("Xid 31 in kernel log for our python", "hw.xid_app"),
    ("3060 12G 显存不够，batch size 设 1 也爆显存", "gpumem.capacity"),
    ("找不到训练数据的标签文件", "io.missing"),
    ("多卡训练 nccl 超时", "dist.timeout_desync"),
    ("ошибка сегментации при импорте torch", "native.segv"),
    ("zugriff verweigert beim schreiben der checkpoints", "io.permission"),
)
CALM = (  # a question, praise, a wish, a healthy run
    "How long should I train DBNet on ICDAR2015 until the loss is fine?",
    "Great work! Which learning rate did you use for the pretrained model?",
    "Is there a way to use two GPUs for inference?",
    "What is the meaning of the threshold map?",
    "Which CUDA version should I install for an RTX 4090?",
    "Thanks, works with num_workers=0 now as well as with 8.",
    "How do I resume training from a checkpoint?",
    "Is it possible to export to ONNX with dynamic batch size?",
    "Where can I get the label file for Total-Text?",
    "I want to know what the argument local_rank is for",
    "The accuracy in training seems to be quite low compared to the paper.",
    "Results are not as good as in the paper with the same settings.",
    "epoch 3/100: loss 0.41, lr 0.007, eta 2:10:00",
    "UserWarning: lr_scheduler.step() called before optimizer.step()",
)


def told(words: str) -> Verdict:
    return classify(Incident(texts={"log_tail.txt": words}))


@pytest.mark.parametrize(("words", "cause"), SAID, ids=[words[:40] for words, _ in SAID])
def test_what_is_said_in_words_of_ones_own_is_ranked_and_never_sure(words: str, cause: str) -> None:
    found = told(words).causes
    assert cause in [one.id for one in found[:3]]
    assert found[0].confidence <= 0.7


@pytest.mark.parametrize("words", CALM)
def test_what_tells_of_no_trouble_names_next_to_nothing(words: str) -> None:
    assert all(one.confidence <= 0.3 for one in told(words).causes)


def test_every_phrase_is_of_a_known_cause_and_each_cause_has_some() -> None:
    known = phrases.load()
    assert set(known.said) <= set(catalogue.load().entries)
    assert all(len(found) >= 5 for found in known.said.values())
    assert set(catalogue.load().entries) - set(known.said) == {"kernel.cascade"}


def test_order_inflection_and_apostrophes_do_not_matter() -> None:
    one, other = phrases.scores("the driver is outdated"), phrases.scores("Outdated drivers!")
    assert one["driver.too_old"] == other["driver.too_old"]
    assert phrases.scores("can't find the driver") == phrases.scores("cannot find the drivers")


def test_a_denied_symptom_is_none_and_one_symptom_is_not_told_for_another() -> None:
    assert "loader.hang_sample" in phrases.scores("the training hangs")
    assert "loader.hang_sample" not in phrases.scores("the training never once hangs")
    assert "loader.hang_sample" not in phrases.scores("the training is killed")


def test_a_question_without_trouble_says_nothing_and_a_doubtful_text_less() -> None:
    assert phrases.scores("How much shared memory does docker give?") == {}
    assert phrases.scores("shared memory of docker", doubtful=True) == {}


def test_a_long_story_holds_only_what_stands_together() -> None:
    story = "driver " + "banana " * 60 + "outdated " + "banana " * 60
    assert "driver.too_old" not in phrases.scores(story)


@pytest.mark.parametrize("words", ["I am stuck with this import error: cannot import name x", "stuck by an exception"])
def test_somebody_who_is_stuck_with_an_error_tells_of_no_program_that_stands_still(words: str) -> None:
    verdict = classify(Incident(context=words))
    assert not [one for one in verdict.causes if one.id.startswith(("hang.", "loader.hang"))]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("Evaluation done, then segmentation fault", "native.segv"),
        ("My training has finished but the script does not exit", "hang.deadlock"),
        ("Expected to have finished reduction in the prior iteration", "dist.unused_params"),
    ],
)
def test_a_sentence_that_speaks_of_an_end_is_no_program_that_ended_well(words: str, cause: str) -> None:
    assert classify(Incident(texts={"log_tail.txt": words})).causes[0].id == cause


@pytest.mark.parametrize("line", ["Training completed", "Training done. best val 0.93", "All epochs finished in 3.2 h"])
def test_and_a_program_that_says_so_did(line: str) -> None:
    assert not classify(Incident(texts={"log_tail.txt": f"step 3 killed loss 0.1\n{line}"})).causes
