"""Families of messages of the libraries around torch, and what a person says of a failure without any."""

from __future__ import annotations

import pytest

from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, Verdict

FAMILIES = (
    ("RuntimeError: No rendezvous handler for env+foo://", "dist.misconfig"),
    ("RuntimeError: Expected to have GPUs as many as processes: world size 4 but 2 devices", "dist.misconfig"),
    ("TypeError: Got unsupported ScalarType BFloat16", "user.dtype"),
    ("torch._C._LinAlgError: linalg.eigh: The algorithm failed to converge because of x", "num.nonfinite"),
    ("AssertionError: Results do not correspond to current coco set", "data.annotation"),
    ("ValueError: boxes must be non-degenerate: found degenerate box [10, 20, 10, 40]", "data.annotation"),
    ("ValueError: Requested crop size (640, 640) is larger than the image size (480, 600)", "data.sample"),
    ("ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10", "build.arch"),
    (
        "NotImplementedError: `cutlassF` is not supported because: xFormers wasn't build with CUDA support",
        "build.cpu_only",
    ),
    ("AssertionError: MMCV==2.2.0 is used but incompatible. Please install mmcv>=2.0.0", "build.abi"),
    (
        "RuntimeError: Failed to import transformers.x because of the following error: No module named 'sentencepiece'",
        "build.missing_package",
    ),
    ("[enforce fail] not enough memory: you tried to allocate 9223372036854775807 bytes.", "gpumem.absurd_size"),
    (
        "host_config.h(133): fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version!",
        "build.system_libs",
    ),
    ("RuntimeError: Missing key in checkpoint state_dict: model.head.weight.", "ckpt.mismatch"),
    ("wandb: retry\nConnectionRefusedError: [Errno 61] Connection refused", "tracker.network"),
    ("ctc_loss_op.cc:168 : Invalid argument: Labels length is zero in batch 25", "data.annotation"),
    ("RuntimeError: all elements of target should be between 0 and 1", "data.annotation"),
    ("xFormers was built for:\n  PyTorch 2.4.0+cu121 with CUDA 1201 (you have 2.4.0+cpu)", "build.cpu_only"),
    ("AttributeError: module 'torch._C' has no attribute '_cuda_getDeviceCount'", "build.cpu_only"),
    (
        "ImportError: DLL load failed while importing _x: Die Auslagerungsdatei ist zu klein, um weiterzu",
        "host.alloc_fail",
    ),
    ("ImportError: DLL load failed while importing _x: ページング ファイルが小さすぎるため", "host.alloc_fail"),
    ("ImportError: DLL load failed while importing _x: Le module spécifié est introuvable.", "build.system_libs"),
    ("ImportError: DLL load failed while importing _x: Не найден указанный модуль.", "build.system_libs"),
    ("ImportError: DLL load failed while importing _x: Die angegebene Prozedur wurde nicht gefunden.", "build.abi"),
    ("OSError: [WinError 126] Das angegebene Modul wurde nicht gefunden", "build.system_libs"),
    ("/usr/bin/ld: cannot find /b/temp/roi_align.o: No such file or directory", "build.compile"),
    ("errors.OfflineModeIsEnabled: Cannot reach https://hub.example/x: offline mode is enabled.", "io.download"),
    ("KeyError: 'DBHeadV9 is not in the mmocr::model registry'", "build.abi"),
    ("FloatingPointError: Fatal error: gradients are inconsistent between workers.", "num.nonfinite"),
    ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR", "host.oom_kill"),
    ("with num_workers=8 it gets blocked at the end of an epoch", "loader.fork_deadlock"),
    ("libtiff.so.5: undefined symbol: jpeg_read_header, version LIBJPEG_6.2", "build.system_libs"),
    ("libssl.so.1.1: undefined symbol: EVP_md5_sha1, version OPENSSL_1_1_0", "build.system_libs"),
    (
        "libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        "build.cuda_libraries",
    ),
    ("io.cc:12: Check failed: std::fwrite(p, 1, n, f) == n FileStream.Write incomplete", "io.disk_full"),
    ("OSError: short write: only 4096 of 65536 bytes written", "io.disk_full"),
    ("InductorError: CppCompileError: C++ compile error", "build.system_libs"),
    ("n1:7:9 [0] graph/search.cc:903 NCCL WARN no ring was found for this topology", "dist.network"),
    ("[main] main.py:3 - ERROR - ModuleNotFoundError: No module named 'lanms'", "build.missing_package"),
    ("训练时报错CUDA out of memory怎么办", "gpumem.capacity"),
    ("多卡训练exits with return code = -11请问怎么解决", "native.segv"),
    ("torch.AcceleratorError: CUDA error: capturing stream has unjoined work", "kernel.capture"),
    ("torch.AcceleratorError: CUDA error: context is destroyed", "kernel.cascade"),
    ("CUDA error 400 at line 34 in file /src/nvcodec/cuda_mapped_frame.cc: invalid resource handle", "kernel.context"),
    ("Error Code 1: Cuda Runtime (invalid resource handle)", "kernel.context"),
    ("RuntimeError: Event device 0 does not match recording stream's device 1.", "kernel.context"),
    ("pycuda._driver.LogicError: explicit_context_dependent failed: invalid device context", "kernel.context"),
    ("RuntimeError: CUDA error: invalid argument", "kernel.context"),
    ("THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=383 error=11 : invalid argument", "build.arch"),
    ("RuntimeError: CUDA error: MPS server is not ready to accept new MPS client requests", "driver.state"),
    ("RuntimeError: CUDA driver call failed: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "dist.p2p"),
    ("RuntimeError: NCCL Error 5: invalid usage", "dist.misconfig"),
    (
        "n:8:9 [0] bootstrap.cc:50 NCCL WARN Mismatched NCCL versions detected : rank 1 has 21903",
        "build.cuda_libraries",
    ),
    ("RuntimeError: [/gloo/gloo/transport/tcp/pair.cc:589] Read error [10.0.0.2]:33: reset", "dist.timeout_desync"),
    ("RuntimeError: Function F returned an invalid gradient at index 1 - got [4] but expected [5]", "user.autograd"),
    ("RuntimeError: cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned", "user.device"),
    ("UFuncTypeError: Cannot cast ufunc 'add' output from dtype('float64') to dtype('int64')", "user.dtype"),
    ("IndexError: too many indices for array: array is 2-dimensional, but 3 were indexed", "user.shape"),
    ("AttributeError: 'collections.OrderedDict' object has no attribute 'to'", "ckpt.mismatch"),
    ("RuntimeError: Invalid magic number; corrupt file?", "ckpt.corrupt"),
    ("RuntimeError: unscale_() has already been called on this optimizer since the last update().", "user.amp"),
    ("torch._dynamo.exc.InternalTorchDynamoError: KeyError: 'x'", "user.compile"),
    ("AttributeError: module 'PIL.Image' has no attribute 'ANTIALIAS'", "build.abi"),
    ("ModuleNotFoundError: No module named 'pytorch_lightning.metrics'", "build.abi"),
    ("ModuleNotFoundError: No module named 'pyclipper'", "build.missing_package"),
    ("/usr/bin/python3: No module named ocr_tool", "build.missing_package"),
    ("ext.cpp:10:3: error: 'AT_CHECK' was not declared in this scope", "build.compile"),
    ("C:\\x\\ext.cpp(3): error C2039: 'type': is not a member of 'at'", "build.compile"),
    ("ERROR: ResolutionImpossible: for help visit the documentation", "build.install"),
    ("c++: internal compiler error: Killed (program cc1plus)", "host.oom_kill"),
    ('qt.qpa.plugin: Could not load the Qt platform plugin "xcb"', "build.system_libs"),
    ("Process finished with exit code -1073741819 (0xC0000005)", "native.segv"),
    ("Process finished with exit code 137 (interrupted by signal 9: SIGKILL)", "host.oom_kill"),
    ("cv2.error: OpenCV(4.8.0) (-215:Assertion failed) npoints >= 0 in function 'contourArea'", "data.sample"),
    ("OSError: [Errno 117] Structure needs cleaning: '/data'", "io.device"),
    ("OSError: [WinError 1117] The request could not be performed because of an I/O device error", "io.device"),
    ("[12.9] blk_update_request: I/O error, dev nvme0n1, sector 12345", "io.device"),
    ("OSError: [Errno 28] inotify watch limit reached", "host.fd_limit"),
    ("BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11)", "io.permission"),
    ("OSError: Cannot find empty port in range: 7860-7860", "io.port"),
    ("urllib.error.HTTPError: HTTP Error 404: Not Found", "io.download"),
    ("RuntimeError: No HIP GPUs are available", "driver.no_visible_device"),
    ("Memory access fault by GPU node-1 on address 0x7f0000. Reason: Page not present.", "kernel.illegal_address"),
    ("RuntimeError: UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "gpumem.capacity"),
    ("nvidia-container-cli: device error: 3: unknown device: unknown", "driver.no_visible_device"),
    ("[12.3] EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "hw.host"),
    ("NVRM: Xid (PCI:0000:3b:00): 149, pid=7, name=python", "hw.gpu"),
    ("431|train|NODE_FAIL|0:0|", "scheduler.kill"),
    ("431|train|OUT_OF_MEMORY|0:125|", "host.oom_kill"),
    ("RuntimeError: Triton Error [CUDA]: device kernel image is invalid", "driver.too_old"),
    ("AssertionError: libcuda.so cannot found!", "build.cuda_libraries"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'ptxas'", "build.cuda_libraries"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/opt/cuda/bin/nvcc'", "build.cuda_libraries"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'g++'", "build.system_libs"),
    (
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/t1/main.c', '-lcuda']' returned non-zero exit"
        " status 1.",
        "build.system_libs",
    ),
    ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:931, invalid usage, NCCL version 2.8.4", "dist.misconfig"),
    ("RuntimeError: Address already in use", "dist.port"),
    ("The server socket has failed to bind to [::]:29511 (errno: 98 - Address already in use).", "dist.port"),
    (
        "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0',"
        " but store->get('0') got error: Connection reset by peer",
        "dist.timeout_desync",
    ),
    ("MemoryError: Error allocating 7340032 bytes of device memory (out of memory)", "gpumem.capacity"),
    ("pycuda._driver.MemoryError: cuMemAlloc failed: out of memory", "gpumem.capacity"),
    ("InternalError: Dst tensor is not initialized.", "gpumem.capacity"),
    ("Check failed: error == cudaSuccess (2 vs. 0)  out of memory", "gpumem.capacity"),
    ("CUDA Error: out of memory\nnet: ./src/cuda.c:36: check_error: Assertion `0' failed.", "gpumem.capacity"),
    ("Check failed: error == cudaSuccess (77 vs. 0)  an illegal memory access", "kernel.illegal_address"),
    ("Check failed: error == cudaSuccess (30 vs. 0)  unknown error", "driver.state"),
    (
        "KeyError: \"param 'initial_lr' is not specified in param_groups[0] when resuming an optimizer\"",
        "ckpt.mismatch",
    ),
    ("AssertionError: tensor([[nan, nan, nan, nan],", "num.nonfinite"),
    ("AssertionError: Box tensor contains infinite or NaN!", "num.nonfinite"),
    ("ValueError: page 7: category_id 12 is out of 0..3", "data.annotation"),
    ("slurmstepd: error: Exceeded job memory limit at some point.", "host.oom_kill"),
    ("wandb: (1) Create a W&B account\nwandb: Enter your choice:", "hang.tracker"),
    ("NVRM: Xid (PCI:0000:3b:00): 94, pid=7, Contained: SM (0x1)", "hw.xid_app"),
    ("NVRM: Xid (PCI:0000:3b:00): 109, pid=7, name=python, CTX SWITCH TIMEOUT", "hw.gpu"),
    ("Using  .cache/torch_extensions/py311_cu121 as PyTorch extensions root...", "hang.build_lock"),
    ('OSError: [Errno 5] Input/output error\n  File "torch/serialization.py", line 9, in save', "io.disk_full"),
)


def said(*lines: str) -> Verdict:
    return classify(Incident(texts={"log_tail.txt": "\n".join(lines)}))


def told(log: str, context: str) -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log}, context=context))


@pytest.mark.parametrize(("message", "cause"), FAMILIES, ids=[message[:40] for message, _ in FAMILIES])
def test_a_message_of_a_family_is_named(message: str, cause: str) -> None:
    assert said(message).causes[0].id == cause


@pytest.mark.parametrize(
    ("context", "cause"),
    [
        ("my computer restarts by itself a minute after training starts on the gpu", "hw.gpu"),
        ("电脑训练时突然关机", "hw.gpu"),
        ("RAM keeps increasing with every epoch", "host.oom_kill"),
        ("训练过程中内存一直上涨", "host.oom_kill"),
        ("torch.cuda.is_available() is False after the installation", "build.cpu_only"),
        ("not working with 5090 rtx", "build.arch"),
        ("GPU memory keeps ceaselessly growing", "gpumem.leak"),
    ],
)
def test_what_a_person_says_is_a_guess_and_none_of_a_log_that_shows_steps(context: str, cause: str) -> None:
    verdict = told("", context)
    assert cause in [one.id for one in verdict.causes[:3]]
    assert all(one.confidence <= 0.7 for one in verdict.causes)


def test_what_a_running_log_says_of_memory_or_the_gpu_is_no_failure() -> None:
    says = "cuda is_available: False, runs only on the CPU", "not enough RAM for the cache of pages, it is off"
    assert said(*says, "epoch 1 step 1 loss 0.5", "epoch 1 step 2 loss 0.4").causes == []


def test_weights_only_relays_an_error_of_the_device() -> None:
    verdict = said(
        "UnpicklingError: Weights only load failed. Please file an issue:",
        "WeightsUnpickler error: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    )
    assert verdict.causes[0].id == "driver.device_busy"


def test_figures_of_a_leak_in_host_memory_get_the_advice_for_one() -> None:
    assert "kept from step to step" in told("", "RAM keeps increasing with every epoch").causes[0].fix


def test_what_paddleocr_says_of_a_sample_is_the_labels_also_without_its_line() -> None:
    frame = '  File "/p/ppocr/data/simple_dataset.py", line 136, in __getitem__'
    verdict = said("error happened with msg: Traceback (most recent call last):", frame, "ValueError: (3,2) (2,2)")
    assert verdict.causes[0].id == "data.annotation"


def test_what_a_build_lacks_asks_for_the_build_without_isolation() -> None:
    first = said("error: subprocess-exited-with-error", "ModuleNotFoundError: No module named 'torch'").causes[0]
    assert (first.id, "--no-build-isolation" in first.fix) == ("build.install", True)


def test_a_machine_that_somebody_restarts_is_not_at_fault() -> None:
    said = classify(Incident(context="when I restart my worker node the training on 4 gpus fails"))
    assert "hw.gpu" not in [cause.id for cause in said.causes]
    itself = classify(Incident(context="training on 4 gpus restarts my computer every hour"))
    assert itself.causes[0].id == "hw.gpu"


@pytest.mark.parametrize(
    "words", ["nvidia-smi hangs", "torch.compile hangs", "it hangs at torch.cuda.synchronize()", "hangs on import ocr"]
)
def test_words_of_standing_still_are_never_sure_and_name_what_looks_the_same(words: str) -> None:
    causes = said(words).causes
    assert causes[0].id.startswith("hang.")
    assert (causes[0].confidence <= 0.7, len(causes) >= 3, all(one.experiment for one in causes)) == (True, True, True)


def test_a_worker_that_finds_no_gpu_after_fork_used_one_before() -> None:
    frame = '  File "pages.py", line 31, in __getitem__\n    return image.cuda()'
    assert said(frame, "RuntimeError: CUDA error: initialization error").causes[0].id == "loader.cuda_in_fork"


def test_a_pipe_that_breaks_while_a_worker_is_pickled_is_no_socket() -> None:
    frame = '  File "C:\\py\\multiprocessing\\reduction.py", line 60, in dump'
    assert said(frame, "BrokenPipeError: [Errno 32] Broken pipe").causes[0].id == "loader.pickling"


def test_memory_that_no_process_holds_explains_more_than_that_it_ran_out() -> None:
    table = "| N/A   36C    P0    41W / 300W |  11799MiB / 16280MiB |      0%  |\n| Processes:   GPU Memory |"
    assert said(table, "OOM when allocating tensor with shape[9,9]").causes[0].id == "gpumem.foreign"


def test_a_pickle_that_ends_too_early_is_a_file_or_a_worker() -> None:
    end = "EOFError: Ran out of input"
    assert said('  File "torch/serialization.py", line 9, in _legacy_load', end).causes[0].id == "ckpt.corrupt"
    assert (
        said('  File "C:\\py\\multiprocessing\\context.py", line 327, in _Popen', end).causes[0].id == "loader.pickling"
    )
    assert told(end, "Windows, in the first batch").causes[0].id == "loader.pickling"
    alone = said(end).causes
    assert [one.id for one in alone[:2]] == ["ckpt.corrupt", "loader.pickling"]
    assert alone[0].confidence <= 0.7


@pytest.mark.parametrize(
    ("status", "causes"),
    [
        ("CUDNN_STATUS_EXECUTION_FAILED", {"build.arch", "build.cuda_libraries", "gpumem.capacity"}),
        ("CUDNN_STATUS_INTERNAL_ERROR", {"build.arch", "build.cuda_libraries", "gpumem.capacity"}),
        ("CUBLAS_STATUS_ALLOC_FAILED", {"gpumem.capacity", "data.index_range", "build.arch"}),
        ("CUBLAS_STATUS_EXECUTION_FAILED", {"build.arch", "data.index_range", "gpumem.capacity"}),
        ("CUSOLVER_STATUS_INTERNAL_ERROR", {"build.cuda_libraries", "gpumem.capacity", "build.arch"}),
        ("cublas runtime error : library not initialized", {"gpumem.capacity", "data.index_range", "build.arch"}),
        ("NCCL Error 1: unhandled cuda error", {"build.arch", "build.cuda_libraries", "driver.too_old"}),
        ("NCCL Error 2: unhandled system error", {"dist.network", "host.shm", "dist.timeout_desync"}),
    ],
)
def test_a_status_of_a_library_names_the_three_that_it_usually_reports(status: str, causes: set[str]) -> None:
    first = said(f"RuntimeError: {status}").causes[:3]
    assert {one.id for one in first} == causes
    assert all(one.confidence <= 0.7 and one.experiment for one in first)


def test_what_works_without_peers_is_of_the_peers() -> None:
    assert told("unhandled cuda error", "it works with NCCL_P2P_DISABLE=1").causes[0].id == "dist.p2p"
    assert told("KeyError: 'page'", "started with NCCL_P2P_DISABLE=1").causes == []


def test_sizes_that_differ_where_weights_are_loaded_are_of_another_checkpoint() -> None:
    sizes = "RuntimeError: The size of tensor a (91) must match the size of tensor b (92) at non-singleton dimension 0"
    assert said('  File "net.py", line 473, in weight_loader', sizes).causes[0].id == "ckpt.mismatch"
    assert said('  File "net.py", line 473, in forward', sizes).causes[0].id == "user.shape"


def test_memory_that_grows_until_somebody_is_killed_is_the_machines() -> None:
    assert told("Killed", "memory rises during the first epoch").causes[0].id == "host.oom_kill"
    assert told("", "the free RAM keeps shrinking while it trains").causes[0].id == "host.oom_kill"
    assert told("CUDA out of memory", "memory rises during the first epoch").causes[0].id == "gpumem.leak"


def test_a_label_that_has_no_path_explains_the_infinite_loss_after_it() -> None:
    path = "W ctc_loss_calculator.cc:144] No valid path found."
    assert said("7496/17725 loss: 28.7", path, "7497/17725 loss: inf").causes[0].id == "loss.ctc_length"
    guessed = told("loss: nan", "lines of text, CTC").causes[:3]
    assert {"loss.ctc_length", "num.nonfinite"} <= {one.id for one in guessed}
    assert all(one.confidence <= 0.7 for one in guessed)


def test_a_build_that_asks_torch_for_its_cuda_has_one_without() -> None:
    frame = '  File "/env/lib/python3.9/site-packages/torch/utils/cpp_extension.py", line 813, in _check_cuda_version'
    found = classify(
        Incident(texts={"l": f"{frame}\n    x\n  TypeError: expected string or bytes-like object\n"})
    ).causes[0]
    assert (found.id, found.evidence[0].text.startswith("TypeError")) == ("build.cpu_only", True)


def test_an_extension_that_does_not_build_says_not_why() -> None:
    found = classify(Incident(texts={"l": "RuntimeError: Error building extension 'dcn'"})).causes
    assert {"build.system_libs", "build.compile", "build.cuda_libraries"} == {cause.id for cause in found[:3]}
    assert found[0].confidence <= 0.7


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("RuntimeError: all elements of target should be between 0 and 1", "255"),
        ("nvidia-smi: Failed to initialize NVML: Driver/library version mismatch", "reboot"),
        ("srun: error: Unable to allocate resources: Requested time limit is invalid", "partition"),
        ("train.py: error: unrecognized arguments: --local-rank=1", "os.environ['LOCAL_RANK']"),
        ("RuntimeError: DDP expects same model across all ranks, but Rank 2 has 128 params", "same model"),
        ("AssertionError: MMCV==2.2.0 is used but incompatible. Please install mmcv>=2.0.0", "mim install"),
        ("fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version!", "toolset"),
        ("Process finished with exit code -1073741819 (0xC0000005)", "VC++"),
    ],
)
def test_the_fix_is_of_the_form_that_was_printed(line: str, word: str) -> None:
    assert word in classify(Incident(texts={"l": line})).causes[0].fix
