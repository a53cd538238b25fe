"""Messages that many things print count only beside what belongs to them."""

from __future__ import annotations

import pytest

from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, Verdict


def raised(message: str, file: str = "fit.py", function: str = "main") -> Verdict:
    log = f'Traceback (most recent call last):\n  File "{file}", line 5, in {function}\n    x = f(y)\n{message}\n'
    return classify(Incident(texts={"log_tail.txt": log}))


PARSING = [
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "ValueError: invalid literal for int() with base 10: 'auto'",
    "ValueError: could not convert string to float: 'auto'",
]


@pytest.mark.parametrize("message", PARSING)
def test_a_value_that_cannot_be_parsed_is_an_annotation_only_beside_data(message: str) -> None:
    assert all(cause.confidence <= 0.4 for cause in raised(message, "options.py", "parse").causes)
    best = raised(message, "dataset.py", "read_annotations").causes[0]
    assert (best.id, best.confidence > 0.6) == ("data.annotation", True)


@pytest.mark.parametrize(
    "message",
    [
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
    ],
)
def test_a_socket_is_of_the_ranks_only_beside_ranks(message: str) -> None:
    assert not any(cause.id.startswith("dist.") for cause in raised(message).causes)


def test_a_refused_rendezvous_is_the_network_of_the_ranks() -> None:
    verdict = raised("ConnectionRefusedError: [Errno 111] Connection refused", "torch/distributed/rendezvous.py")
    assert verdict.causes[0].id == "dist.network"


def test_an_image_that_is_none_is_missing_or_damaged() -> None:
    causes = raised("AttributeError: 'NoneType' object has no attribute 'shape'").causes
    assert {cause.id for cause in causes} >= {"data.corrupt", "io.missing"}
    assert all(cause.confidence <= 0.7 for cause in causes)


def test_a_missing_key_of_the_tracker_is_no_sure_hang() -> None:
    causes = raised("wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[key])").causes
    assert all(cause.confidence <= 0.45 for cause in causes)


def test_a_refused_global_is_mended_by_weights_only() -> None:
    message = "_pickle.UnpicklingError: Weights only load failed. Unsupported global: GLOBAL numpy.core.scalar"
    assert raised(message).causes[0].fix.startswith("weights_only")
    other = raised("RuntimeError: PytorchStreamReader failed reading zip archive").causes[0]
    assert not other.fix.startswith("weights")


TRACED = "Traceback (most recent call last):"
YAML = "yaml.scanner.ScannerError: while scanning for the next token\nfound character '\\t' that cannot start any token"


def test_a_file_of_settings_is_no_annotation() -> None:
    assert raised(f'{YAML}\n  in "cfg.yaml", line 3').causes == []
    assert raised("json.decoder.JSONDecodeError: Expecting value: line 3", 'read("train_config.json")').causes == []
    causes = raised(f'{YAML}\n  in "labels/7.yaml", line 3').causes
    assert causes[0].id == "data.annotation"


def test_an_error_of_a_worker_that_read_no_sample_is_no_samples() -> None:
    frame = '  File "/v/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 307, in _worker_loop\n'
    told = f"Caught AttributeError in DataLoader worker process 0.\nOriginal {TRACED}\n{frame}"
    told = f'AttributeError: {told}  File "/p/fit.py", line 5, in init_worker\n    open(path)\n'
    verdict = raised(f"{told}AttributeError: no lmdb_path")
    assert verdict.causes == []
    assert "`AttributeError: no lmdb_path` in init_worker (fit.py:5)" in verdict.missing[0]


def test_keys_ports_and_ssh_are_what_they_seem_only_beside_their_own_words() -> None:
    assert raised("KeyError: 'points'").causes == []
    assert raised("KeyError: 'points'", "dataset.py").causes[0].id == "data.annotation"
    taken = "OSError: [Errno 98] Address already in use"
    assert (raised(taken).causes[0].id, raised(taken).causes[0].confidence < 0.8) == ("io.port", True)
    assert raised(taken, "torch/distributed/rendezvous.py").causes[0].id == "dist.port"
    assert raised("git@github.com: Permission denied (publickey).\nRuntimeError: no clone").causes == []


def test_what_a_linker_misses_is_no_file_of_the_program() -> None:
    verdict = said("/usr/bin/ld: cannot find -lcudart: No such file or directory")
    assert "io.missing" not in [cause.id for cause in verdict.causes]


@pytest.mark.parametrize(
    ("message", "context", "sure"),
    [
        ("OSError: [Errno 28] No space left on device", "", False),
        ("OSError: [Errno 28] No space left on device: '/data/run/last.ckpt'", "", True),
        ("ERROR: Unexpected bus error encountered in worker.", "", True),
        ("ERROR: Unexpected bus error encountered in worker.", "container with --ipc=host", False),
        ("step 7 loss: nan", "", True),
        ("error: (-215:Assertion failed) !ssize.empty() in function 'resize'", "", False),
        ("error: (-215:Assertion failed) !ssize.empty() in function 'resize'", "in epoch 3, after 200 steps", True),
        ("step 7 loss: nan", "only with several cards, one GPU works", False),
    ],
)
def test_the_circumstances_make_a_message_doubtful(message: str, context: str, sure: bool) -> None:
    assert (said(message, context).causes[0].confidence >= 0.8) is sure


def test_a_machine_without_ipv6_is_no_sure_network_failure() -> None:
    line = "[c10d] The client socket cannot be initialized to connect (errno: 97 - Address family not supported)."
    assert said(line).causes[0].confidence < 0.6


def test_a_semaphore_that_does_not_fit_is_shared_memory() -> None:
    verdict = said("[Errno 28] No space left on device.  joblib will operate in serial mode")
    assert verdict.causes[0].id == "host.shm"
    assert verdict.causes[0].confidence < 0.8


def test_the_signal_that_torchrun_ends_others_with_is_nobodys_cause() -> None:
    verdict = said("Sending process 7 closing signal SIGTERM\nfailed (exitcode: -6) local_rank: 0 (pid: 6)")
    assert verdict.causes[0].id == "native.abort"
    assert verdict.causes[0].confidence < 0.8


def test_what_failed_with_one_line_of_the_labels_is_the_labels() -> None:
    line = "ERROR: When parsing line img_1.jpg, error happened with msg: Traceback (most recent call last):"
    causes = said(f"{line}\nValueError: operands could not be broadcast together with shapes (4,2) (3,2)").causes
    assert causes[0].id == "data.annotation"


def said(log: str, context: str = "") -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log}, context=context))


@pytest.mark.parametrize(
    "message",
    [
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 1",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  rank : 1\n  exitcode  : 1 (pid: 71)",
    ],
)
def test_a_launcher_whose_program_failed_of_its_own_exception_tells_nothing(message: str) -> None:
    assert raised(message).causes == []


def test_a_launcher_whose_program_died_of_a_signal_does() -> None:
    assert raised("ProcessExitedException: process 0 terminated with signal SIGSEGV").causes[0].id == "native.segv"


@pytest.mark.parametrize(("below", "sure"), [("loading pages", False), ("error: command 'g++' failed", True)])
def test_a_library_that_cannot_be_linked_counts_where_the_build_failed(below: str, sure: bool) -> None:
    log = f"compiling\n/usr/bin/ld: cannot find -lz: No such file or directory\n{below}"
    causes = classify(Incident(texts={"log_tail.txt": log})).causes
    assert (bool(causes) and causes[0].confidence >= 0.8) == sure


def test_a_tracker_that_answers_is_reached() -> None:
    log = "wandb: ERROR Error while calling W&B API: run x was previously created and deleted (<Response [409]>)\nstep"
    assert not [one for one in classify(Incident(texts={"l": log})).causes if one.confidence > 0.4]


@pytest.mark.parametrize(
    "line",
    ["machine api.wandb.ai login user password x", "wandb: Appending key for api.wandb.ai to your netrc file: x"],
)
def test_where_the_key_for_a_tracker_is_kept_is_no_trouble_with_it(line: str) -> None:
    log = f"{line}\nTraceback (most recent call last):\n  File 'a.py', line 1, in f\nRuntimeError: no"
    assert "tracker.network" not in [one.id for one in classify(Incident(texts={"log_tail.txt": log})).causes]


VARIABLES = [
    "+ NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 2 train.py",
    "export NCCL_P2P_DISABLE=1",
    "NCCL_P2P_DISABLE=1 python run.py",
]


@pytest.mark.parametrize("line", VARIABLES)
def test_a_variable_that_is_set_is_no_evidence_of_what_it_is_for(line: str) -> None:
    log = f'{line}\nepoch 1 loss 0.3\nTraceback (most recent call last):\n  File "f.py", line 5, in main\nKeyError: 1\n'
    assert classify(Incident(texts={"log_tail.txt": log})).causes == []


@pytest.mark.parametrize("words", ["With NCCL_P2P_DISABLE=1 it works.", "It hangs unless I set NCCL_P2P_DISABLE=1."])
def test_but_what_is_said_to_help_is(words: str) -> None:
    best = classify(Incident(context=words)).causes[0]
    assert (best.id, best.confidence <= 0.7) == ("dist.p2p", True)


@pytest.mark.parametrize("code", [1, 3, 17, 120])
def test_a_rank_that_ends_itself_is_no_rank_that_is_late(code: int) -> None:
    log = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\n[0]:\n"
        f"  rank      : 1 (local_rank: 1)\n  exitcode  : {code} (pid: 77)\n"
    )
    assert classify(Incident(texts={"log_tail.txt": log})).causes == []


def test_a_key_that_a_checkpoint_lacks() -> None:
    best = raised("KeyError: 'lr_state'", "lib/optim.py", "load_state_dict").causes[0]
    assert (best.id, best.confidence < 0.8) == ("ckpt.mismatch", True)
    assert raised("KeyError: 'lr_state'").causes == []


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("ValueError: insufficient shared memory for one stage of the kernel", "host.shm"),
        ("RuntimeError: P2POp is not supported here", "dist.p2p"),
        ("FileNotFoundError: nvcc not found at '/usr/local/cuda'", "io.missing"),
        ("FileNotFoundError: nvidia-smi: command not found", "io.missing"),
        ("AssertionError: constexpr min does not support NaN values", "num.nonfinite"),
        ("RuntimeError: CTCLoss cannot be graph captured with input_lengths on the CPU", "loss.ctc_length"),
        ("Warning: NCCL communicator hasn't been destroyed. This may cause memory leaks.", "gpumem.leak"),
    ],
)
def test_a_word_of_another_trade_is_not_sure(message: str, cause: str) -> None:
    assert not [one for one in said(message).causes if one.id == cause and one.confidence > 0.4]


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("ERROR: worker: insufficient shared memory (shm)", "host.shm"),
        ("RuntimeError: P2P is not supported between GPU 0 and GPU 1", "dist.p2p"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'runtime.txt'", "io.missing"),
        ("ValueError: array must not contain infs or NaNs", "num.nonfinite"),
        ("RuntimeError: Expected input_lengths to have value at most 26", "loss.ctc_length"),
    ],
)
def test_its_look_alike_stays_sure(message: str, cause: str) -> None:
    assert (said(message).causes[0].id, said(message).causes[0].confidence >= 0.8) == (cause, True)


SIZES = "RuntimeError: The size of tensor a (16) must match the size of tensor b (4) at non-singleton dimension 0"


def test_an_optimizer_that_meets_other_sizes_has_the_state_of_another_model() -> None:
    of_the_state = raised(SIZES, "/env/site-packages/torch/optim/sgd.py", "step")
    assert (of_the_state.causes[0].id, of_the_state.causes[0].confidence <= 0.7) == ("ckpt.mismatch", True)
    assert all(cause.confidence <= 0.6 for cause in of_the_state.causes if cause.id == "user.shape")


def test_but_what_a_closure_raises_beneath_the_optimizer_is_not_of_its_state() -> None:
    frames = (
        '  File "/env/torch/optim/lbfgs.py", line 5, in step\n    loss = closure()\n  File "net.py", line 2, in f\n'
    )
    log = f"Traceback (most recent call last):\n{frames}    return a + b\n{SIZES}\n"
    best = classify(Incident(texts={"log_tail.txt": log})).causes[0]
    assert (best.id, best.confidence > 0.9) == ("user.shape", True)


@pytest.mark.parametrize(
    ("line", "sure"),
    [
        ("[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 110).", False),
        (
            "[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (Connection timed out)",
            False,
        ),
        ("[E socket.cpp:793] [c10d] The client socket has timed out while trying to connect to (127.0.0.1, 4)", False),
        ("[E socket.cpp:793] [c10d] The client socket has timed out while trying to connect to (10.0.0.7, 4)", True),
    ],
)
def test_a_socket_that_tries_again_or_calls_its_own_machine_is_no_sure_network(line: str, sure: bool) -> None:
    assert any(one.id == "dist.network" and one.confidence > 0.7 for one in said(line).causes) is sure


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("fatal error C1083: Cannot open include file: 'pyconfig.h': No such file or directory", "build.system_libs"),
        (
            "fatal error C1083: Cannot open include file: 'cusparse.h': No such file or directory",
            "build.cuda_libraries",
        ),
        ("fatal error C1083: Cannot open include file: 'THC/THC.h': No such file or directory", "build.compile"),
        ("op.cpp:3:10: fatal error: THC/THC.h: No such file or directory", "build.compile"),
        ("op.cpp:3:10: fatal error: 'omp.h' file not found", "build.system_libs"),
        ("unable to execute 'gcc': No such file or directory", "build.system_libs"),
    ],
)
def test_a_header_or_compiler_that_is_not_there_is_no_file_of_the_program(line: str, cause: str) -> None:
    assert [one.id for one in said(line).causes if one.confidence >= 0.7] == [cause]
