"""Messages of the libraries around torch, each alone: what they state, and where they must not be believed."""

from __future__ import annotations

import pytest

from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, Verdict

MESSAGES = (
    ("./run.sh: Zeile 3: 812 Getötet                 python train.py", "host.oom_kill"),
    ("Speicherzugriffsfehler (Speicherabzug geschrieben)", "native.segv"),
    ("Instruction non permise (core dumped)", "build.cpu_isa"),
    ("TopologyException: side location conflict at 4 2", "data.annotation"),
    ("ProcessExitedException: process 0 terminated with exit code 3221225620", "native.segv"),
    ("subprocess.CalledProcessError: Command '['which', 'g++']' returned non-zero exit status 1.", "build.system_libs"),
    ('Setting up PyTorch plugin "roi_plugin"...', "hang.build_lock"),
    ("UnicodeDecodeError: 'utf8' codec can't decode byte 0xff in position 0", "data.annotation"),
    ("lmdb.ReadersFullError: mdb_txn_begin: MDB_READERS_FULL: Environment maxreaders limit reached", "data.sample"),
    ("lmdb.Error: /data/lmdb/data.mdb: Not a directory", "io.missing"),
    ("[libprotobuf FATAL google/protobuf/stubs/common.cc:83] This program was compiled against 3.9", "build.abi"),
    ("train.sh: line 4: 12 Memory fault(coredump)", "native.segv"),
    ("ValueError: crop 3 is an empty array", "data.sample"),
    ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0", "num.nonfinite"),
    ("RuntimeError: Some workers are no longer alive", "loader.worker_exit"),
    ("DistStoreError: Timed out after 5 seconds waiting for clients. 1/2 clients joined.", "dist.timeout_desync"),
    (
        "torchrun --nnodes 2 x.py\nDistStoreError: Timed out after 9 seconds waiting for clients. 1/2 clients joined.",
        "dist.network",
    ),
    ("WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.", "driver.none"),
    ("docker: Error response from daemon: unknown or invalid runtime name: nvidia.", "driver.none"),
    ("RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "driver.no_visible_device"),
    ("An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed.", "build.cpu_only"),
    ("RuntimeError: modulated_deformable_conv: implementation for device cuda:0 not found.", "build.cpu_only"),
    ("Installed CUDA version 11.2 does not match the version torch was compiled with 10.2", "build.cuda_libraries"),
    ("AttributeError: libbitsandbytes_cpu.so: undefined symbol: cget_col_row_stats", "build.cuda_libraries"),
    ("ext.cu:3:10: fatal error: cuda_runtime.h: No such file or directory", "build.cuda_libraries"),
    ("ext.c:3:10: fatal error: Python.h: No such file or directory", "build.system_libs"),
    ("ImportError: DLL load failed while importing _x: The specified module could not be found.", "build.system_libs"),
    ("ImportError: DLL load failed while importing _x: The specified procedure could not be found.", "build.abi"),
    ("OSError: [WinError 193] %1 is not a valid Win32 application", "build.abi"),
    ("ValueError: numpy.ndarray size changed, may indicate binary incompatibility.", "build.abi"),
    ("FatalError: `Illegal instruction` is detected by the operating system.", "build.cpu_isa"),
    ("FatalError: `Segmentation fault` is detected by the operating system.", "native.segv"),
    ("Unknown CU result: 700", "kernel.illegal_address"),
    ("OSError: Can't read data (inflate() failed)", "data.corrupt"),
    ("OSError: 1000000 requested and 131056 written", "io.disk_full"),
    ('python: csrc/bad.c:6: fill: Assertion `n > 0 && "width must be positive"\' failed.', "native.abort"),
    ("lmdb.InvalidError: img.lmdb: MDB_INVALID: File is not an LMDB file", "data.corrupt"),
    (
        "InvalidArgumentError: Saw a non-null label (index >= num_classes - 1) following a null label",
        "data.index_range",
    ),
    ("InvalidArgumentError: sequence_length(0) <= 26", "loss.ctc_length"),
    ("DataLossError: Unable to open table file m.ckpt: not an sstable (bad magic number)", "ckpt.corrupt"),
    ("ValueError: Layer count mismatch when loading weights from file.", "ckpt.mismatch"),
    ("RuntimeError: Couldn't open shared file mapping: <torch_8_1>, error code: <1455>", "host.alloc_fail"),
    ("slurmstepd: error: Job 12 exceeded memory limit (5 > 4), being killed", "host.oom_kill"),
    ("=>> PBS: job killed: mem 6gb exceeded limit 4gb", "host.oom_kill"),
    ("=>> PBS: job killed: walltime 3610 exceeded limit 3600", "scheduler.kill"),
    ("OMP: Error #34: System unable to allocate necessary resources for OMP thread:", "host.thread_limit"),
    ("*** buffer overflow detected ***: terminated", "native.abort"),
    ("Fatal glibc error: malloc.c:2599 (sysmalloc): assertion failed", "native.abort"),
    ("zsh: segmentation fault  python train.py", "native.segv"),
    ("AttributeError: Can't get local object 'main.<locals>.<lambda>'", "loader.pickling"),
    ("Batch 12: Invalid loss, terminating training", "num.nonfinite"),
    ("ValueError: Shapes (None, 10) and (None, 5) are incompatible", "user.shape"),
    ("TypeError: Cannot handle this data type: (1, 1, 3), <f4", "user.dtype"),
    ("Parameter at index 5 has been marked as ready twice.", "dist.unused_params"),
    ("RuntimeError: No backend type associated with device type cpu", "dist.misconfig"),
    ("mlflow.exceptions.MlflowException: API request to http://t:5000/api failed with exception", "tracker.network"),
    ("Cumulative allocation of -154486272 b", "gpumem.absurd_size"),
    ("CUDA Exception: Warp Misaligned Address", "kernel.misaligned"),
    ('Thread 9 "pt_main" received signal CUDA_EXCEPTION_14, Warp Illegal Address.', "kernel.illegal_address"),
    ("box:81:99 [0] alloc.h:99 NCCL WARN Cuda failure 999 'unknown error'", "driver.state"),
    ("box:81:99 [0] alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'", "gpumem.raw_alloc"),
    ("LAPTOP-7QX: NCCL WARN Could not find real path of /sys/class/pci_bus/0000:08/x", "wsl.limits"),
    ("ValueError: Annotation must have a list of instances", "data.annotation"),
    ("[ERROR:0] parallel_impl.cpp (240) WorkerThread 3: Can't spawn new thread: res = 11", "host.thread_limit"),
    ("Warning  Evicted  pod/fit-0  The node was low on resource: memory. Container fit was using 9Gi", "host.oom_kill"),
    ("Warning  Evicted  pod/fit-0  The node was low on resource: pids.", "scheduler.kill"),
    ("OSError: cannot open resource", "io.missing"),
    ("ValueError: could not broadcast input array from shape (8,) into shape (4,)", "user.shape"),
    ("/usr/bin/ld: cannot find -lcublasLt: No such file or directory", "build.cuda_libraries"),
    ("/usr/bin/ld: cannot find -lpython3.11: No such file or directory", "build.system_libs"),
    ("Could not find the quickquant CUDA binary at PosixPath('/opt/q/libq124.so')", "build.cuda_libraries"),
    ("NotImplementedError: Could not run 'aten::empty' with arguments from the 'CUDA' backend.", "build.cpu_only"),
    ("NotImplementedError: Could not run 'aten::_mm' with arguments from the 'SparseCPU' backend.", "user.device"),
    ("The operator 'aten::foo' is not currently implemented for the MPS device.", "build.arch"),
    ("FATAL: kernel `fmha` is for sm80-sm100, but was built for sm37", "build.arch"),
    ("epoch: [2/9], global_step: 40, lr: 0.001, CTCLoss: nanxxx, loss: nanxxx", "num.nonfinite"),
    ("Exception: A polygon that contains no points has no inside.", "data.annotation"),
    ("OSError: [Errno 5] Input/output error: '/mnt/share/page_0007.jpg'", "io.device"),
    ("lmdb.InvalidParameterError: mdb_put: Invalid argument", "io.disk_full"),
    ("ValueError: setting an array element with a sequence.", "user.shape"),
    ("AttributeError: module 'numpy' has no attribute 'bool'.", "build.abi"),
    (
        "F env.cc:73] Check failed: ret == 0 (11 vs. 0) Thread creation via pthread_create() failed.",
        "host.thread_limit",
    ),
    ("CUDA error = 999 at loop.cu:19 'cudaDeviceSynchronize()'", "driver.state"),
    ("Bus Error", "host.shm"),
    (">>> torch.cuda.device_count()\n0", "driver.no_visible_device"),
    ("AssertionError: expected weight of 3 dimensions, but got 2", "user.shape"),
    ("ValueError: the mask must have dtype float32, got bool", "user.dtype"),
    ("ValueError: Expected a CUDA tensor, but the image lives on cpu", "user.device"),
    ("ValueError: polygons should have 2 dimensions, got 1", "data.annotation"),
    ("RuntimeError: No valid boxes for page 7", "data.annotation"),
    ("    baton.wait()", "hang.build_lock"),
    ("UserWarning: Error checking compiler version for cl: [WinError 2] not there", "build.system_libs"),
    ("Skip loading parameter 'neck.weight' due to incompatible shapes: (8, 4) and (8, 2)", "ckpt.mismatch"),
    ("ImportError: ext.so: undefined symbol: __cudaRegisterQuux", "build.cuda_libraries"),
    ("ImportError: ext.so: undefined symbol: cufftQuux64", "build.cuda_libraries"),
    ("ImportError: ext.so: undefined symbol: custom_op_init", "build.abi"),
    ("ValueError: character 'x' is not in the charset", "data.annotation"),
    ("ValueError: '\\xe9' is not in list", "data.annotation"),
    ("RuntimeError: Expected argument 2 to have the same device as argument 1", "user.device"),
)


def said(*lines: str) -> Verdict:
    return classify(Incident(texts={"log_tail.txt": "\n".join(lines)}))


@pytest.mark.parametrize(("message", "cause"), MESSAGES, ids=[message[:40] for message, _ in MESSAGES])
def test_a_message_is_named(message: str, cause: str) -> None:
    assert said(message).causes[0].id == cause


def test_an_abort_is_not_sure_where_something_says_why() -> None:
    verdict = said(
        "E cuda_dnn.cc:397] could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
        "F conv_ops.cc:605] Check failed: stream->parent()->GetConvolveAlgorithms(&algorithms)",
        "Aborted (core dumped)",
    )
    assert verdict.causes[0].confidence < 0.7
    assert "gpumem.capacity" in [cause.id for cause in verdict.causes]


def test_an_abort_with_nothing_beside_it_is_sure() -> None:
    verdict = said("Aborted (core dumped)")
    assert (verdict.causes[0].id, verdict.causes[0].confidence >= 0.8) == ("native.abort", True)


def test_eagain_is_sure_only_where_a_thread_or_process_is_made() -> None:
    sure = said("  self.pid = os.fork()", "BlockingIOError: [Errno 11] Resource temporarily unavailable")
    assert sure.causes[0].confidence >= 0.8
    assert said("BlockingIOError: [Errno 11] Resource temporarily unavailable").causes[0].confidence < 0.8


def test_a_library_status_alone_lists_what_that_status_usually_reports() -> None:
    verdict = said("failed to run cuBLAS routine: CUBLAS_STATUS_EXECUTION_FAILED")
    assert verdict.causes[0].confidence < 0.7
    assert {"data.index_range", "gpumem.capacity"} <= {cause.id for cause in verdict.causes[:3]}


def test_the_illegal_instruction_is_the_line_that_says_so() -> None:
    told = said('$ python -c "import torch"', "Illegal instruction: 4").causes[0].evidence[0]
    assert (told.line, told.text) == (2, "Illegal instruction: 4")


def test_a_segment_that_another_rank_made_elsewhere_is_no_missing_file_and_no_sure_shortage() -> None:
    verdict = said(
        "box:81:99 [1] shmutils.cc:93 NCCL WARN Call to open failed: No such file or directory",
        "box:81:99 [1] shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a1 "
        "(size 9637888), error: No such file or directory (2)",
    )
    assert (verdict.causes[0].id, verdict.causes[0].confidence <= 0.5) == ("host.shm", True)
    assert "io.missing" not in [cause.id for cause in verdict.causes]
    assert "--ipc=host" in verdict.causes[0].fix


def test_a_cuda_error_that_nccl_hides_is_not_sure() -> None:
    verdict = said(
        "terminate called after throwing an instance of 'std::runtime_error'",
        "  what():  NCCL Error 1: unhandled cuda error",
        "Aborted (core dumped)",
    )
    assert verdict.causes[0].confidence < 0.6
    assert "NCCL_DEBUG=INFO" in verdict.causes[0].experiment


def test_a_killed_spawned_process_is_out_of_memory_or_ended_by_somebody() -> None:
    verdict = said("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL")
    assert [cause.id for cause in verdict.causes[:2]] == ["host.oom_kill", "ext.signal"]
    assert verdict.causes[0].confidence < 0.6


def test_a_store_that_waits_in_vain_has_several_causes() -> None:
    verdict = said(
        "Traceback (most recent call last):",
        '  File "/opt/torch/distributed/rendezvous.py", line 10, in _make_store',
        "    return store",
        "torch.distributed.DistStoreError: Socket Timeout",
    )
    assert {"dist.network", "dist.timeout_desync"} <= {cause.id for cause in verdict.causes}
    assert verdict.causes[0].confidence < 0.6


@pytest.mark.parametrize(
    ("function", "error", "sure"),
    [("encode", "KeyError: 'Ω'", True), ("parse_xml", "KeyError: 'stamp'", False), ("setup", "KeyError: 'x'", None)],
)
def test_a_character_without_a_place_in_the_alphabet(function: str, error: str, sure: bool | None) -> None:
    frame = f'  File "rec/labels.py", line 8, in {function}'
    verdict = said("Traceback (most recent call last):", frame, "    out = table[key]", error)
    found = [(cause.id, cause.confidence >= 0.8) for cause in verdict.causes[:1]]
    assert found == ([] if sure is None else [("data.annotation", sure)])


def test_a_missing_package_that_the_message_names_is_no_binary_mismatch() -> None:
    verdict = said("ImportError: This needs `quick>=0.3`: run `pip install quick -U`")
    assert verdict.causes[0].id == "build.missing_package"
    assert verdict.causes[0].confidence < 0.8


def test_one_rank_that_was_started_twice() -> None:
    line = "Initializing distributed: GLOBAL_RANK: {}, MEMBER: {}/2"
    twice = said(line.format(0, 1), line.format(0, 1), line.format(1, 2), line.format(1, 2))
    assert twice.causes[0].id == "dist.misconfig"
    assert said(line.format(0, 1), line.format(1, 2)).causes == []


def test_an_lmdb_that_cannot_be_made_asks_for_its_size() -> None:
    frame = '  File "pack.py", line 20, in create_dataset'
    verdict = said("Traceback (most recent call last):", frame, "    env = f()", "lmdb.Error: out/lmdb: ???")
    assert (verdict.causes[0].id, "map_size" in verdict.causes[0].fix) == ("io.disk_full", True)


def test_workers_that_do_not_end_are_no_stop_from_outside() -> None:
    verdict = said(
        '  File "torch/utils/data/dataloader.py", line 942, in _shutdown_workers',
        '  File "multiprocessing/process.py", line 140, in join',
        "KeyboardInterrupt",
    )
    assert verdict.causes[0].id == "hang.deadlock"


@pytest.mark.parametrize(
    ("error", "cause"), [("IndexError: list index out of range", "data.annotation"), ("KeyError: 'gt'", "data.sample")]
)
def test_a_line_that_paddle_cannot_parse_is_the_label_file(error: str, cause: str) -> None:
    verdict = said(
        "[2024/05/02 10:00:00] ppocr ERROR: When parsing line 17.png",
        ", error happened with msg: Traceback (most recent call last):",
        '  File "ppocr/data/simple_dataset.py", line 150, in __getitem__',
        "    label = substr[1]",
        error,
    )
    assert verdict.causes[0].id == cause


def test_another_cudnn_than_paddles_is_a_warning_first() -> None:
    line = "The installed Paddle is compiled with CUDNN 8.9, but CUDNN version in your machine is 8.1, which may"
    assert said(f"W0302 10:00:00 12 gpu_resources.cc:217] WARNING: device: 0. {line}").causes[0].confidence < 0.6


def test_a_notebook_that_restarts_after_gigabytes_is_short_of_memory() -> None:
    verdict = said("tcmalloc: large alloc 3221225472 bytes == 0x5b", "KernelRestarter: restarting kernel (1/5)")
    assert [cause.id for cause in verdict.causes[:1]] == ["host.oom_kill"]
    assert verdict.causes[0].confidence < 0.6


def test_the_file_of_an_allocator_is_no_shortage() -> None:
    place = "encountered at aten/src/THC/THCCachingHostAllocator.cpp:265"
    verdict = said(f"RuntimeError: cuda runtime error (39) : uncorrectable ECC error {place}")
    assert [cause.id for cause in verdict.causes] == ["hw.gpu"]


def test_a_scheduler_in_a_folders_name_is_no_word_of_it() -> None:
    verdict = said(
        "Traceback (most recent call last):",
        '  File "/runs/slurm_copy/io.py", line 1, in save',
        "OSError: [Errno 14] x",
    )
    assert verdict.causes == []


def test_what_nccl_and_torch_tell_of_themselves_is_no_error() -> None:
    plugin = "Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file"
    told = (
        "[I ProcessGroupWrapper.cpp:562] [Rank 0] Running collective: TensorOptions(dtype=float, requires_grad=false)"
    )
    first, *others = said(f"n1:31:31 [0] NCCL INFO NET/Plugin : {plugin} or directory", told).causes
    assert (first.id, first.confidence < 0.6) == ("dist.timeout_desync", True)
    assert not any(cause.id.startswith(("build.", "user.", "io.")) for cause in others)


def test_a_character_is_looked_up_in_the_alphabet() -> None:
    verdict = said("    at = self.alphabet[text[i]]", "KeyError: 'Q'")
    assert (verdict.causes[0].id, "alphabet" in verdict.causes[0].fix) == ("data.annotation", True)


@pytest.mark.parametrize(
    "lines",
    [
        ("`GPUAccelerator` can not run on your system since the accelerator is not available.",),
        ("MisconfigurationException: You requested GPUs: [1]", " But your machine only has: []"),
    ],
)
def test_no_card_for_lightning_may_be_the_wheel_as_well(lines: tuple[str, ...]) -> None:
    causes = {cause.id: cause.confidence for cause in said(*lines).causes}
    assert causes["driver.no_visible_device"] == causes["build.cpu_only"] < 0.6


def test_a_list_of_what_it_may_be_is_no_proof() -> None:
    listed = "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer (2) SIGSEGV"
    died = "(raylet) A worker died or was killed while executing a task by an unexpected system error."
    causes = said(f"{died} {'Worker ID: 2cf4 ' * 20} {listed}").causes
    assert causes[0].id == "host.oom_kill"
    assert causes[0].confidence < 0.6


def test_a_child_that_failed_while_it_ran_the_programs_file_again_lacks_the_guard_of_its_main_part() -> None:
    verdict = said(
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 297, in _fixup_main_from_path',
        '  File "/p/fit.py", line 4, in <module>',
        "RuntimeError: context has already been set",
        "Traceback (most recent call last):",
        '  File "/p/fit.py", line 9, in <module>',
        "RuntimeError: DataLoader worker (pid(s) 22559) exited unexpectedly",
    )
    assert verdict.causes[0].id == "loader.pickling"
    assert "__main__" in verdict.causes[0].fix


def test_a_model_inside_dataparallel_under_another_launcher() -> None:
    verdict = said("AssertionError: Caught AssertionError in replica 1 on device 1.", "see deepspeed/runtime/timer.py")
    assert verdict.causes[0].id == "dist.misconfig"


def test_what_ended_without_a_word_was_killed_or_crashed() -> None:
    verdict = told("  1/100   4.2G   1.8   3.3   1.5", "it simply quits, no error message")
    assert {"host.oom_kill", "native.segv"} <= {cause.id for cause in verdict.causes[:3]}
    assert verdict.causes[0].confidence < 0.6


def test_what_stands_still_without_a_word_was_not_killed() -> None:
    verdict = told("  1/100   4.2G   1.8   3.3   1.5", "it is stuck here, no error message")
    assert "host.oom_kill" not in [cause.id for cause in verdict.causes]


def test_a_screen_that_goes_with_the_kernel_is_the_watchdog() -> None:
    verdict = told("CUDA error: unknown error", "Windows; the screen goes black for a second")
    assert "kernel.launch_timeout" in [cause.id for cause in verdict.causes[:3]]


def test_memory_that_a_dead_process_keeps_is_somebody_elses() -> None:
    verdict = told("CUDA out of memory.", "the memory is still occupied after I have stopped the training")
    assert verdict.causes[0].id == "gpumem.foreign"


def test_a_first_copy_to_the_card_that_is_interrupted_hung_in_its_initialisation() -> None:
    assert (
        said("----> 3 b = a.cuda()", "    return self.type(kind)", "KeyboardInterrupt").causes[0].id == "hang.cuda_init"
    )


def test_a_signal_in_a_job_that_is_preempted_is_the_schedulers() -> None:
    log = "SignalException: Process 1 got signal: 15"
    assert told(log, "").causes[0].id == "ext.signal"
    assert told(log, "the cluster preempts the pod").causes[0].id == "scheduler.kill"


def test_a_port_in_use_is_no_network_failure() -> None:
    verdict = said("misc/socket.cc:405 NCCL WARN Net : bind failed : Address already in use")
    assert verdict.causes[0].id == "dist.port"


def test_a_batch_without_labels_is_for_want_of_labels() -> None:
    verdict = said("WARNING: no labels were found", "RuntimeError: torch.cat(): expected a non-empty list of Tensors")
    assert verdict.causes[0].id == "data.annotation"


def test_an_error_of_the_code_that_reads_data_is_the_datas() -> None:
    lines = "Traceback (most recent call last):", '  File "tools/dataset.py", line 7, in parse', "    a, b = line[:2]"
    causes = [cause.id for cause in said(*lines, "IndexError: list index out of range").causes]
    assert {"data.annotation", "data.sample"} <= set(causes[:3])


def test_an_error_of_a_polygons_geometry_is_the_labels() -> None:
    lines = "Traceback (most recent call last):", '  File "maps.py", line 7, in draw_border', "    p = o.Execute(d)[0]"
    assert said(*lines, "IndexError: list index out of range").causes[0].id == "data.annotation"


def told(log: str, context: str) -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log}, context=context))
