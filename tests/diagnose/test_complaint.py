"""Symptoms told in a sentence: ranked causes that nobody is sure of, and what to look at where there is no failure."""

from __future__ import annotations

import pytest

from ocrlab.diagnose import catalogue, complaint, verdict
from ocrlab.diagnose.classify import classify
from ocrlab.diagnose.log import page
from ocrlab.records import Incident, Verdict

TOLD = (
    ("Our run stands still after a while, and nothing more is printed.", "loader.hang_sample"),
    ("With six workers the second batch is never returned.", "loader.fork_deadlock"),
    ("It halts while it fetches a batch; the pages lie on NFS.", "loader.hang_sample"),
    ("Two machines, one rank each: neither of them makes any progress.", "dist.timeout_desync"),
    ("No progress since noon; both cards show 100 % utilisation.", "dist.p2p"),
    ("On 8 GPUs it does not continue after validation.", "dist.timeout_desync"),
    ("Nothing is shown on the console for an hour after I start it.", "hang.build_lock"),
    ("It does not respond while ninja compiles our CUDA op.", "hang.build_lock"),
    ("model.cuda() does not return, and nvidia-smi shows nothing.", "hang.cuda_init"),
    ("When the run is over it does not finish: mlflow waits for ever.", "hang.tracker"),
    ("One core is busy and nothing moves.", "loader.hang_sample"),
    ("In Jupyter under Windows the cell does not finish with 2 workers.", "loader.pickling"),
    ("Swap is at 100 % and nothing responds any more.", "host.oom_kill"),
    ("Each time it quits by itself in the third epoch.", "host.oom_kill"),
    ("It disappears abruptly while the data set is read.", "host.oom_kill"),
    ("The job was stopped overnight on our cluster.", "scheduler.kill"),
    ("In Colab it crashes unexpectedly.", "notebook.kernel_died"),
    ("On Windows 11 it closes itself.", "native.segv"),
    ("The container exits suddenly.", "host.oom_kill"),
    ("My session keeps being restarted in the notebook.", "notebook.kernel_died"),
    ("It stops at one iteration; the utilisation of the card is zero.", "loader.hang_sample"),
    ("It gives no feedback while it loads its plugin.", "hang.build_lock"),
    ("After the last page it is stuck at a breakpoint.", "hang.stopped"),
    ("With DataParallel it does not start.", "dist.p2p"),
    ("It chokes while it builds the extension.", "hang.build_lock"),
    ("Memory of the card climbs from step to step.", "gpumem.leak"),
    ("VRAM is higher after each epoch.", "gpumem.leak"),
    ("The host's memory creeps up by a gigabyte an epoch.", "host.oom_kill"),
    ("训练到第三个 epoch 就没反应了", "loader.hang_sample"),
    ("显存一直在上涨", "gpumem.leak"),
    ("训练中途闪退", "host.oom_kill"),
)
DENIED = (
    "With one worker it does not hang.",
    "Memory does not grow, and the loss falls.",
    "How many epochs did you train for, and with which schedule?",
    "It is stuck for about 40 seconds at each epoch and then goes on.",
)

FAMILIES = (  # of causes, each in the words of somebody who has no message
    ("After an apt upgrade last night torch no longer sees the GPU until I reboot.", "driver.state"),
    ("GPU is not found any more after the laptop wakes from sleep.", "driver.state"),
    ("torch.cuda.is_available() returns False although nvidia-smi works fine.", "build.cpu_only"),
    ("It trains on the CPU instead of the GPU even though I have an RTX 3060.", "build.cpu_only"),
    ("Inside docker the GPU is not detected, on the host it works.", "driver.none"),
    ("CUDA is not available in WSL.", "driver.none"),
    ("My new RTX 5090 does not work with this torch version, the old 2080 was fine.", "build.arch"),
    ("It runs on a V100 but fails on an H100.", "build.arch"),
    ("Training on RTX 3090 gives wrong results with CUDA 10, on the 1080 Ti everything is right.", "build.arch"),
    ("After pip install of another package torch cannot be imported.", "build.cuda_libraries"),
    ("nms operator does not exist after upgrading torch.", "build.torchvision"),
    ("After upgrading PyTorch the compiled extension can no longer be imported.", "build.abi"),
    ("The extension does not compile with gcc 12.", "build.compile"),
    ("It crashes with illegal instruction on an old Xeon without AVX.", "build.cpu_isa"),
    ("import torch crashes at once on my old CPU.", "build.cpu_isa"),
    ("Only on the second GPU the custom op gives an illegal memory access; cuda:0 is fine.", "kernel.illegal_address"),
    (
        "Training fails randomly with a CUDA error after a few hours, on the other machine it never does.",
        "kernel.illegal_address",
    ),
    ("With my own dataset of 20 classes it crashes on the GPU in the loss, on COCO it works.", "data.index_range"),
    ("I changed the number of classes and now get a device side assert.", "data.index_range"),
    ("When I train with batch size 8 the memory is not enough, with 2 it works.", "gpumem.capacity"),
    ("I cannot train with a larger image size, the 8 GB card is too small.", "gpumem.capacity"),
    ("Out of memory only after 300 iterations, the first ones are fine.", "gpumem.leak"),
    ("GPU memory is full although no process is running in nvidia-smi.", "gpumem.foreign"),
    ("It says out of memory but nvidia-smi shows plenty free.", "gpumem.fragmentation"),
    ("Validation runs out of memory while training fits.", "gpumem.capacity"),
    ("The process gets killed after loading the dataset.", "host.oom_kill"),
    ("The terminal just prints Killed.", "host.oom_kill"),
    ("RAM usage goes up with every epoch until the machine freezes.", "host.oom_kill"),
    ("Training with num_workers=8 is killed, with 2 it is fine.", "host.oom_kill"),
    ("In docker the DataLoader workers die, with --ipc=host it works.", "host.shm"),
    ("With more workers I get bus error in the container.", "host.shm"),
    ("Works with num_workers=0 but crashes with more workers.", "loader.worker_crash"),
    ("Works with num_workers=0 but hangs with more workers.", "loader.fork_deadlock"),
    ("On Windows it works only with num_workers=0.", "loader.pickling"),
    ("It freezes at the beginning of the second epoch with workers.", "loader.fork_deadlock"),
    ("DataLoader hangs as soon as I use cv2 in the transform.", "loader.fork_deadlock"),
    ("Calling cv2.setNumThreads(0) makes the hang go away.", "loader.fork_deadlock"),
    ("It fails after a few epochs with many open file handles.", "host.fd_limit"),
    ("The disk of the server is full and checkpoints cannot be saved.", "io.disk_full"),
    ("The saved checkpoint cannot be loaded again, it was cut off when the power failed.", "ckpt.corrupt"),
    ("I cannot load the pretrained weights into my model with another number of classes.", "ckpt.mismatch"),
    ("Fine-tuning from the released model fails because the layers have other names.", "ckpt.mismatch"),
    ("The segmentation fault comes as soon as I import cv2 after torch.", "native.segv"),
    ("It crashes with core dumped and no Python traceback.", "native.segv"),
    ("Segfault only when I import open3d before torch.", "native.segv"),
    ("My job was cancelled by slurm after 24 hours.", "scheduler.kill"),
    ("Training stops when I close the ssh session.", "ext.signal"),
    ("When I close the laptop or log out, the process ends.", "ext.signal"),
    ("import torch takes forever and never returns.", "hang.import"),
    ("The script hangs at from torch.utils.tensorboard import SummaryWriter.", "hang.import"),
    ("wandb.init() never returns on the compute node.", "hang.tracker"),
    ("Training finished but the process does not exit, wandb keeps uploading.", "hang.tracker"),
    ("The first .cuda() call takes ten minutes on my new card.", "hang.cuda_init"),
    ("nvidia-smi itself hangs.", "hang.cuda_init"),
    ("GPU utilisation is 100 % on all four cards but nothing happens.", "dist.p2p"),
    ("DDP hangs on AMD EPYC with A6000s, with NCCL_P2P_DISABLE=1 it runs.", "dist.p2p"),
    ("Single node works, two nodes hang at init_process_group.", "dist.network"),
    ("The second node never connects to the master.", "dist.network"),
    ("It hangs at the end of the epoch with DDP because one rank has fewer batches.", "dist.timeout_desync"),
    ("Only rank 0 does validation and then everything stops.", "dist.timeout_desync"),
    ("With DDP it gets stuck when saving a checkpoint.", "dist.timeout_desync"),
    ("I cannot start a second training on the same machine, the first one uses the port.", "dist.port"),
    ("All processes run on GPU 0 and the others are empty.", "dist.misconfig"),
    ("DDP complains about parameters that did not get a gradient.", "dist.unused_params"),
    ("Loss becomes NaN after some iterations with mixed precision, fp32 is fine.", "num.nonfinite"),
    ("Loss is nan from the first step.", "num.nonfinite"),
    ("The CTC loss is inf for some samples.", "loss.ctc_length"),
    ("The PC reboots by itself as soon as training starts.", "hw.gpu"),
    ("Machine shuts down under full load of both GPUs.", "hw.gpu"),
    ("The screen goes black and the GPU disappears from nvidia-smi until a cold start.", "hw.gpu"),
    ("GPU has fallen off the bus.", "hw.gpu"),
    ("In WSL2 the memory of Windows fills up until it is killed.", "host.oom_kill"),
    ("The Jupyter kernel dies when I run the training cell.", "notebook.kernel_died"),
    ("Colab session crashed after using all available RAM.", "host.oom_kill"),
    ("torch.compile takes forever on the first step.", "hang.compile"),
    ("It is stuck at Using /root/.cache/torch_extensions after I killed the last run.", "hang.build_lock"),
    ("The build was interrupted; since then it hangs on loading the extension.", "hang.build_lock"),
    ("The process is in state D and cannot be killed.", "hang.stopped"),
    ("It waits for input in the terminal although it runs in the background.", "hang.stopped"),
    ("ctrl-C does not work, one thread waits for a lock.", "hang.deadlock"),
    ("Some of my images are broken and training stops in the middle of the epoch.", "data.corrupt"),
    ("The labels contain an empty text and training crashes.", "data.annotation"),
    ("Images of different sizes cannot be batched.", "data.sample"),
    ("No boxes are found in my annotation files.", "data.annotation"),
    ("The dataset is not found although the path is right.", "io.missing"),
    ("I have no permission to write to the shared folder.", "io.permission"),
    ("The weights cannot be downloaded behind our proxy.", "io.download"),
    ("wandb cannot connect from the cluster, there is no internet.", "tracker.network"),
    ("Model is on the GPU but the input is on the CPU.", "user.device"),
    ("Half precision inference fails on CPU.", "user.dtype"),
    ("The input channels of my gray images do not fit the first layer.", "user.shape"),
    ("The last batch has a single sample and batch norm fails.", "user.shape"),
    ("Calling backward twice fails.", "user.autograd"),
    ("The dataset class cannot be pickled on macOS.", "loader.pickling"),
    ("CUDA cannot be used in the workers.", "loader.cuda_in_fork"),
    ("lmdb with several workers crashes.", "loader.worker_crash"),
    ("Worker exits unexpectedly with no message.", "host.oom_kill"),
    ("Since I upgraded from torch 1.13 to 2.0 training hangs at the first iteration on two GPUs.", "dist.p2p"),
    ("The program stops after 10 epochs without an error.", "host.oom_kill"),
    ("Multi-GPU evaluation never ends.", "dist.timeout_desync"),
    ("It gets stuck when two scripts compile the same op at once.", "hang.build_lock"),
    (
        "After an hour training freezes, the other GPU of the machine still works, power draw is at idle.",
        "loader.hang_sample",
    ),
    ("Training hangs at random when reading from the NFS share.", "loader.hang_sample"),
    ("Only one particular image makes the training hang.", "loader.hang_sample"),
    ("The GPU is in use by my display and a long kernel is killed.", "kernel.launch_timeout"),
    ("Xid 79 appears in dmesg.", "hw.gpu"),
    ("ECC errors are counted on one card.", "hw.gpu"),
    ("A driver update broke training: CUDA version mismatch.", "driver.state"),
    ("cuDNN cannot be initialised although it is installed.", "gpumem.capacity"),
    ("Too many threads on the shared server, the process cannot start.", "host.thread_limit"),
    ("My script ignores the graphics card and computes everything on the processor.", "build.cpu_only"),
    ("Once I moved to driver 550, pytorch says there is no GPU.", "build.cpu_only"),
    ("The code was fine on a 1080 but on my 4070 I get an error.", "build.arch"),
    ("Cannot import my CUDA op since the conda environment was rebuilt.", "build.abi"),
    ("setup.py develop throws an error from nvcc.", "build.compile"),
    ("On an older CPU it quits with Illegal instruction.", "build.cpu_isa"),
    ("Error in the cross entropy only for my own labels; the demo dataset trains.", "data.index_range"),
    ("How can I train this on a 4 GB GPU? It always runs out of memory.", "gpumem.capacity"),
    ("OOM during the evaluation loop, not during training.", "gpumem.capacity"),
    ("nvidia-smi lists nothing, yet 10 GB are occupied.", "gpumem.foreign"),
    ("Python eats all the RAM until Linux kills it.", "host.oom_kill"),
    ("Main process dies while building the cache of the dataset.", "host.oom_kill"),
    ("Four loader processes: bus error. One: fine.", "host.shm"),
    ("The main process waits in next(iter(loader)) and nothing comes.", "loader.hang_sample"),
    ("It locks up whenever num_workers is not zero.", "loader.fork_deadlock"),
    ("Lambda in my transform makes the loader fail on Windows.", "loader.pickling"),
    ("I can't resume, the file last.ckpt seems damaged.", "ckpt.corrupt"),
    ("python crashes hard with a segfault on the first forward.", "native.segv"),
    ("The queue system ended my run at its wall time.", "scheduler.kill"),
    ("My run is gone when the VPN drops.", "ext.signal"),
    ("loading scipy before torch never gets past the import line", "hang.import"),
    ("The last thing I see is 'wandb: Waiting for W&B process to finish', for hours.", "hang.tracker"),
    ("On two RTX 4090 the script hangs right after 'Initializing distributed'.", "dist.p2p"),
    ("With four GPUs, three of them stay at 100 % and one at 0 %, no progress.", "dist.p2p"),
    ("torchrun starts 4 processes but they all land on the same card.", "dist.misconfig"),
    ("Gradients explode and after epoch 2 everything is nan.", "num.nonfinite"),
    ("The whole workstation turns off in the middle of an epoch.", "hw.gpu"),
    ("One of the eight cards drops off the bus every few days.", "hw.gpu"),
    ("Kernel keeps restarting in JupyterLab.", "notebook.kernel_died"),
    ("With torch.compile the first batch never finishes.", "hang.compile"),
    ("It waits at 'Loading extension module' for ever.", "hang.build_lock"),
    ("It sits at (Pdb) and I cannot see it because of the progress bar.", "hang.stopped"),
    ("A few JPEGs of the set are truncated and kill the run.", "data.corrupt"),
    ("The annotations of my own set give an error on reading.", "data.annotation"),
    ("Every image has another size and the default collate fails.", "data.sample"),
    ("The pretrained backbone cannot be fetched on the cluster without internet.", "io.download"),
    ("wandb fails to reach its server.", "tracker.network"),
    ("input is cuda but weights are cpu, how to fix?", "user.device"),
    ("autocast gives a type error in my loss.", "user.dtype"),
    ("Number of channels does not match when I use RGBA.", "user.shape"),
    ("Backpropagating two losses through one network raises an error.", "user.autograd"),
    ("Multi GPU fails with unused parameters, single GPU is fine.", "dist.unused_params"),
    ("Our h5 file is opened in __init__ and crashes with several workers.", "loader.worker_crash"),
    ("There is a mismatch of the weights with the settings.", "ckpt.mismatch"),
    ("My computer has no gcc, and the compiler is not found.", "build.system_libs"),
    ("My GPU has only 4 GB, how do I reduce the memory?", "gpumem.capacity"),
    ("跑到第二轮就直接退出", "host.oom_kill"),
)
ASKED = (
    "My own weights match the paper's, thank you.",
    "Training speed drops and GPU utilisation is 0 most of the time.",
    "Loss does not go down at all.",
    "Which learning rate did you use for the paper?",
    "Could you share the training log of ResNet-50?",
    "I trained for 100 epochs and hmean is 0.82, is that expected?",
    "Thank you, everything works now with the new version.",
    "Where can I download the dataset?",
    "What is the meaning of the threshold map?",
    "Training takes 3 days on 4 GPUs, is that normal?",
    "Do you plan to support multi-node training?",
)


def judge(words: str, log: str = "") -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log} if log else {}, context=words))


@pytest.mark.parametrize(("words", "cause"), TOLD, ids=[words[:40] for words, _ in TOLD])
def test_a_symptom_told_in_a_sentence_is_ranked_and_never_sure(words: str, cause: str) -> None:
    found = judge(words).causes
    assert cause in [one.id for one in found[:3]]
    assert all(one.confidence <= 0.5 and one.experiment for one in found)


@pytest.mark.parametrize("words", [words for words, _ in TOLD])
def test_a_file_that_holds_the_sentence_is_read_alike(words: str) -> None:
    found = classify(Incident(texts={"log_tail.txt": f"{words}\n"})).causes
    assert [one.id for one in found] == [one.id for one in judge(words).causes]


@pytest.mark.parametrize("words", DENIED)
def test_what_is_denied_or_passes_by_itself_is_no_symptom(words: str) -> None:
    assert judge(words).causes == []


def test_an_error_in_the_log_counts_more_than_words() -> None:
    found = judge("It hangs with two cards.", "RuntimeError: CUDA error: no kernel image is available for execution")
    assert (found.causes[0].id, found.causes[0].confidence > 0.8) == ("build.arch", True)


def test_a_log_alone_tells_no_symptom() -> None:
    lines = [f"Epoch {n} | loss {1 / (n + 1):.3f} | no better checkpoint, not saved" for n in range(5)]
    assert complaint.hits([page("log_tail.txt", "\n".join(["INFO nothing to resume, starting", *lines]))]) == []


def test_where_the_log_stops_is_a_circumstance() -> None:
    log = "Seed set to 1\nInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n"
    assert "dist.timeout_desync" in [one.id for one in judge("It does not start.", log).causes[:3]]


def test_a_hang_on_one_card_as_well_is_not_of_several() -> None:
    found = judge("It hangs with 4 GPUs, and the same with 1 GPU.").causes
    assert not [one.id for one in found if one.id.startswith("dist.") and one.confidence > 0.45]


def test_the_line_of_the_symptom_is_the_evidence() -> None:
    words = "I use torch 2.5.\nAfter an hour it is stuck.\n"
    line = judge(words).causes[0].evidence[0]
    assert (line.file, line.line) == ("context", 2)


def test_slow_training_is_no_hang_and_gets_its_experiment() -> None:
    found = judge("At the start of every epoch it waits for 30 seconds on 4 GPUs; the cards are idle.")
    assert found.causes == []
    assert complaint.TIMES in verdict.markdown(found)


def test_training_that_learns_nothing_gets_its_experiment() -> None:
    found = judge("The loss does not decrease on the other backend, on the CPU it does.")
    assert found.causes == []
    assert complaint.CHECKS in found.missing


@pytest.mark.parametrize(("words", "cause"), FAMILIES, ids=[words[:40] for words, _ in FAMILIES])
def test_what_is_told_of_a_family_is_ranked_and_never_sure(words: str, cause: str) -> None:
    found = judge(words).causes
    assert cause in [one.id for one in found[:3]]
    assert found[0].confidence <= 0.7


@pytest.mark.parametrize("words", ASKED)
def test_a_question_and_a_healthy_run_are_no_symptom(words: str) -> None:
    assert judge(words).causes == []


def test_every_row_names_words_and_causes_that_are_known() -> None:
    words, rows = complaint._words_and_rows()
    known = catalogue.load().entries
    for row in rows:
        assert {*row.when, *row.but} <= set(words)
        assert set(row.causes) <= set(known)
        assert all(any(one.startswith(less) for one in known) for less in row.less)
    assert set(words) == {name for row in rows for name in (*row.when, *row.but)}


def test_a_circumstance_takes_away_what_it_speaks_against() -> None:
    found = judge("It hangs on 4 GPUs; with num_workers=0 it works.").causes
    assert not [one.id for one in found[:2] if one.id.startswith("dist.")]


def test_not_is_read_where_it_is_shortened() -> None:
    assert judge("It doesn't start on two machines.").causes[0].id.startswith("dist.")


def test_what_a_program_printed_counts_more_than_what_is_told_beside_it() -> None:
    found = judge("error with several GPUs", "RuntimeError: input is on the wrong device").causes
    assert found[0].id == "user.device"


def printed(*lines: str, context: str = "") -> Verdict:
    return classify(Incident(texts={"log_tail.txt": "\n".join(lines) + "\n"}, context=context))


def test_an_error_that_no_signature_knows_is_about_what_its_words_are_about() -> None:
    found = printed("Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "    go()",
                    "RuntimeError: the polygons of the label file have fewer than three points").causes  # fmt: skip
    assert found[0].id == "data.annotation"
    error = printed(
        "fit: 3 workers", "ERROR: could not reserve the pinned pages: out of memory in the pin memory thread"
    )
    assert error.causes[0].confidence <= 0.3
    assert printed("ERROR: quux of the third kind").causes == []
    assert printed("fit.py: error: argument --batch: invalid int value: 'many'").causes == []


def test_beside_a_message_that_says_little_people_are_heard() -> None:
    line = "RuntimeError: Triton Error [CUDA]: invalid argument"
    alone, beside = (
        printed(line),
        printed(line, context="The computer reboots itself under load, its power supply is weak."),
    )
    assert "hw.gpu" not in [one.id for one in alone.causes]
    assert "hw.gpu" in [one.id for one in beside.causes]
    assert beside.causes[0].id == alone.causes[0].id


def test_a_bare_crash_a_reboot_that_heals_and_one_card_that_idles() -> None:
    assert judge("It crashed when the training was over.").causes[0].confidence <= 0.3
    assert judge("cutorch is not working; after rebooting it is working again").causes[0].id == "driver.state"
    found = judge("Training is stuck: one GPU drops to 0 % and the others stay at 100 %.").causes
    assert found[0].id == "dist.timeout_desync"
    assert judge("程序卡住：某个gpu的利用率变成0，另外7个gpu利用率变成100").causes[0].id == "dist.timeout_desync"
