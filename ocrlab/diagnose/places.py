"""What an error that no signature knows is about: the library in which it was raised makes some causes likely."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocrlab.diagnose import uncaught, where
from ocrlab.diagnose.evidence import Hit, quote
from ocrlab.diagnose.log import Page

# Of a name or a call that is wrong: the program's own, wherever it is noticed.
OWN = re.compile(
    r"^(?:E {3,})?(?:\w+\.){0,6}(?:Key|Attribute|Name|Type|Syntax|Indentation|UnboundLocal"
    r"|NotImplemented|Recursion)Error\b"
    r"|^(?:KeyboardInterrupt|SystemExit|StopIteration)\b"
)
SURE = (0.45, 0.32, 0.24)  # of a place's causes, most probable first


@dataclass(frozen=True)
class Place:
    """Files of a library, the function where that matters, and what errors that are raised there are about."""

    file: re.Pattern[str]
    causes: tuple[str, ...]
    function: re.Pattern[str]
    error: re.Pattern[str]


def _place(file: str, causes: str, function: str = "", error: str = "") -> Place:
    return Place(re.compile(rf"/(?:{file})"), tuple(causes.split()), re.compile(function), re.compile(error))


# torch.distributed checks its arguments with these; what its C++ raises of sockets and ranks has other classes.
CHECKED = r"^(?:\w+\.){0,6}(?:Value|Assertion)Error\b"
MEETS = r"all_?reduce|all_?gather|reduce|broadcast|barrier|scatter|gather|all_?to_?all|recv|send|wait|synchroni"


PLACES = (
    _place(r"torch/(?:nn/modules/module|optim/optimizer)\.py", "ckpt.mismatch ckpt.corrupt", "load_state_dict"),
    _place(r"torch/_weights_only_unpickler\.py", "ckpt.corrupt ckpt.mismatch"),
    _place(r"torch/serialization\.py|safetensors/", "ckpt.corrupt io.missing ckpt.mismatch", "load|open|get_record"),
    _place(r"torch/serialization\.py|safetensors/", "io.disk_full io.permission ckpt.corrupt", "save|write|exit"),
    _place(r"torch/utils/cpp_extension\.py|torch/utils/hipify", "build.compile build.cuda_libraries build.system_libs"),
    _place(r"torch/utils/data/_utils/(?:fetch|collate)\.py", "data.sample data.annotation user.shape"),
    _place(r"torch/(?:_dynamo|_inductor|fx|export)/|triton/", "user.compile build.compile build.arch"),
    _place(r"torch/cuda/graphs\.py", "kernel.capture user.compile"),
    _place(r"torch/cuda/__init__\.py", "driver.state driver.too_old build.cpu_only", "init|count|check"),
    _place(r"torch/(?:cuda/)?amp/|apex/amp/", "user.amp user.dtype num.nonfinite"),
    _place(r"torch/distributed/(?:checkpoint|_state_dict_utils)\b", "ckpt.mismatch ckpt.corrupt io.missing"),
    _place(r"torch/distributed/(?:_?tensor|device_mesh|pipelining)\b", "user.shape dist.misconfig user.device"),
    _place(r"torch/distributed/(?:fsdp|_composable|algorithms)\b", "dist.misconfig user.dtype user.device"),
    _place(
        r"torch/distributed/(?:elastic/|rendezvous|launch|run)\b", "dist.misconfig dist.network dist.port", "", CHECKED
    ),
    _place(r"torch/distributed/(?:elastic/|rendezvous|rpc|launch|run)\b", "dist.network dist.timeout_desync dist.port"),
    _place(
        r"torch/nn/parallel/(?:data_parallel|parallel_apply|scatter|replicate|comm)", "user.device user.shape dist.p2p"
    ),
    _place(
        r"torch/distributed/|deepspeed/comm/|horovod/", "dist.misconfig dist.timeout_desync dist.network", "", CHECKED
    ),
    _place(r"torch/distributed/|deepspeed/comm/|horovod/", "dist.timeout_desync dist.network dist.misconfig", MEETS),
    _place(
        r"torch/(?:distributed/|nn/parallel/)|deepspeed/|horovod/", "dist.misconfig dist.timeout_desync dist.network"
    ),
    _place(r"torch/autograd/", "user.autograd user.shape gpumem.capacity"),
    _place(r"torch/nn/|torch/functional\.py|torchvision/ops/|torchvision/models/", "user.shape user.dtype user.device"),
    _place(
        r"torchvision/(?:io|datasets)/|PIL/|imageio/|tifffile/|skimage/io/|av/", "data.corrupt io.missing data.sample"
    ),
    _place(r"torchvision/transforms/|albumentations/|imgaug/|kornia/", "data.sample data.annotation user.shape"),
    _place(r"torchmetrics/|sklearn/metrics/", "user.shape data.annotation user.dtype"),
    _place(r"pycocotools/|xml/|lxml/|csv\.py|shapely/|pandas/io/", "data.annotation data.corrupt io.missing"),
    _place(r"lmdb/|h5py/|webdataset/|tarfile\.py|zipfile\b", "data.corrupt io.missing"),
    _place(r"multiprocessing/(?:reduction|popen_spawn_\w+|spawn)\.py", "loader.pickling loader.worker_exit"),
    _place(r"wandb/|mlflow/|comet_ml/|neptune/|clearml/", "tracker.network hang.tracker"),
    _place(r"urllib/|urllib3/|requests/|http/client\.py|huggingface_hub/|torch/hub\.py", "io.download tracker.network"),
    _place(r"nbclient/|papermill/|jupyter_client/", "notebook.kernel_died"),
)


def hits(texts: list[Page]) -> list[Hit]:
    """Return what the innermost frame of the traceback that ended the program speaks for, never sure."""
    end = uncaught.find(texts)
    if end is None or not end.traced or OWN.match(end.own.text):
        return []
    lines = zip(end.page.numbers, end.page.text.split("\n"), strict=False)
    frames = [where.FRAME.match(text) for number, text in lines if end.first <= number < end.own.number]
    inner = next((frame for frame in reversed(frames) if frame), None)
    if inner is None:
        return []
    file = inner["file"].replace("\\", "/")
    raised = (inner["function"], end.own.text)
    found = next((one for one in PLACES if one.file.search(file) and _suits(one, *raised)), None)
    if found is None:
        return []
    told, why = quote(end.page.name, end.own), f"raised in {'/'.join(file.split('/')[-3:])}"
    place = (texts.index(end.page), end.own.number)
    return [
        Hit(cause, sure, sure, "possible", told, why, place) for cause, sure in zip(found.causes, SURE, strict=False)
    ]


def _suits(one: Place, function: str, error: str) -> bool:
    return one.function.search(function) is not None and one.error.search(error) is not None
