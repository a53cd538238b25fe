"""A best checkpoint made small and fit to be given away: half precision, nothing private, a SHA-256 beside it.

python -m ocrlab.inference.release_checkpoint runs/NAME/checkpoints/best-....ckpt
    ocrlab/inference/pretrained/receipts.ckpt
python -m ocrlab.inference.model_card ...      then its model card, from what was measured with the packed file
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.errors import CheckpointError
from ocrlab.inference import checkpoint
from ocrlab.inference.pretrained import sha256
from ocrlab.run_folder import write_text


def pack(source: Path, out: Path) -> str:
    """Write the detector of a checkpoint in half precision to `out`, its SHA-256 to `out`.sha256, and return that.

    The same checkpoint always gives the same bytes. Raises CheckpointError where `out` exists, where a weight is too
    large for half precision (65,504), or where the settings still name a place on the disk.
    """
    beside = out.with_name(f"{out.name}.sha256")
    for file in (out, beside):
        if file.exists():
            do = "Remove it, or choose another"
            raise CheckpointError("Nothing is overwritten", got=f"{file}, which exists", do=do)
    model, config, about = checkpoint.load_detector(source)
    weights = {name: halved(name, tensor) for name, tensor in model.state_dict().items()}
    metrics = {name: value for name, value in about["metrics"].items() if "@" in name or name == "pages"}
    content = {"ocrlab": checkpoint.card(public(config), about["step"], metrics), "detector": weights}
    checkpoint.save(content, out)
    out.chmod(0o644)  # a run's checkpoints are for their owner; this one is for everybody
    digest = sha256(out)
    write_text(beside, f"{digest}  {out.name}\n")  # as sha256sum writes it, and checks it with -c
    return digest


def halved(name: str, tensor: Tensor) -> Tensor:
    """Return a weight of two or more dimensions as float16, others as they are; raises CheckpointError if it overflows.

    Biases and BatchNorm's statistics are a hundredth of the file, and a variance may be larger than float16 can hold.
    """
    tensor = tensor.detach().cpu().contiguous()
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    half = tensor.to(torch.float16)
    if not torch.isfinite(half).all():
        got = f"up to {float(tensor.abs().max()):g}"
        what = f"The weights {name} do not fit into half precision"
        raise CheckpointError(what, got=got, need="finite numbers up to 65504")
    return half


def public(config: Config) -> Config:
    """Return the settings without where and by whom; raises CheckpointError if one of them still looks like a path."""
    fresh = Config()
    public_config = config.model_copy(update={name: getattr(fresh, name) for name in checkpoint.PRIVATE})
    for key, value in configs.flat(public_config).items():
        if isinstance(value, str) and ("/" in value or "\\" in value):
            what = "A setting names a place on the disk"
            raise CheckpointError(what, got=f"{key}={value}", need="none in a public file")
    return public_config


def main() -> None:
    """Pack the checkpoint that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    digest = pack(args.checkpoint, args.out)
    print(f"{digest}  {args.out}, {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
