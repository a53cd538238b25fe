"""`ocrlab train`: words to config, resume, debugging, the answer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocrlab.cli import main, train
from ocrlab.config.schema import Config, dump, keys, load
from ocrlab.debug.watch import supervisor
from ocrlab.debug.watch.lifecycle import Ended, Options
from ocrlab.records import RunRecord, to_json
from ocrlab.run_folder.owner_process import identity


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Let a test change the environment without leaving a trace."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    monkeypatch.delenv("DEBUG_CUDA", raising=False)
    before = dict(os.environ)
    yield
    for name in [name for name in os.environ if name not in before]:
        del os.environ[name]


@pytest.mark.parametrize(
    "words",
    [
        ["+hardware=rtx3060_12gb_i5_16core", "batch_size=4"], ["trainer.accumulate_grad_batches=4"],
        ["trainer.accelerator=cpu", "max_epochs=1"], [],
    ],
)  # fmt: skip
def test_words_become_the_config(words, calls):
    assert main(["train", *words]) == 0
    assert calls.fit.config == load(overrides=words)
    assert calls.fit.resume is None


@pytest.mark.parametrize("spelled", [["exp.yaml", "crop=64", "--json"], ["--json", "crop=64", "--config", "exp.yaml"]])
def test_a_file_and_words_in_any_order(spelled, calls, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("exp.yaml").write_text("crop: 128\nbatch_size: 2\n")
    assert main(["train", *spelled]) == 0
    assert (calls.fit.config.crop, calls.fit.config.batch_size) == (64, 2)
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1, "status": "success", "run": "runs/x", "checkpoint": None, "metrics": {"hmean@0.5": 0.25},
    }  # fmt: skip


@pytest.mark.parametrize(("words", "message"), [
    (["exp"], "Write exp=VALUE"),
    (["a.yaml", "b.yaml"], "More than one config file"),
    (["none.yaml"], "No such file"),
    (["--resume", "run", "lr=1"], "lr=1"),
    (["--resume", "run", "a.yaml"], "a.yaml"),
])  # fmt: skip
def test_words_that_cannot_be_meant(words, message, calls, capsys):
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err
    assert calls.fit is None


def test_resume_takes_the_config_of_the_run(calls, tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path)]) == 1
    assert "no config.yaml" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text(dump(Config(crop=96)))
    assert main(["train", "--resume", str(tmp_path)]) == 0
    assert (calls.fit.resume, calls.fit.config.crop) == (tmp_path, 96)


def test_keys_lists_every_setting(calls, capsys):
    assert main(["train", "--keys"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["setting", *keys()]
    assert main(["train", "--keys", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"]["crop"]["takes"] == keys()["crop"].need
    assert calls.fit is None


@pytest.fixture
def watched(monkeypatch) -> SimpleNamespace:
    """Train under a watcher that only notes the command; `printed` is what its child prints, `ended` how it ends."""
    child = SimpleNamespace(printed=b"", ended=Ended("success", 0, None, None, Path("runs/x"), 0))

    def watch(words, options, *, output=None):
        child.words, child.options, child.output = words[1:], options, output
        if output:
            output(1, child.printed)
        return child.ended

    monkeypatch.delenv("OCRLAB_WATCH")
    monkeypatch.setattr(supervisor, "watch", watch)
    return child


def test_by_default_a_child_trains_under_watch(watched, calls, capsys, tmp_path):
    file = str(tmp_path / "a=b.yaml")
    Path(file).write_text("runs: there\n")
    assert main(["train", "crop=64", "--config", file, "lr=1"]) == 0
    assert watched.words == ["-m", "ocrlab", "train", "crop=64", "lr=1", "--config", file]
    assert watched.options == Options(own_folder=True, runs=Path("there").absolute())
    assert (watched.output, calls.fit, capsys.readouterr().out) == (None, None, "")
    finish(tmp_path / "run", "failure", "")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert watched.words[3:] == ["--resume", str(tmp_path / "run")]
    assert watched.options.runs == tmp_path


def finish(run: Path, status: str, settings: str) -> None:
    """Write what a run of these settings leaves."""
    run.mkdir()
    (run / "config.yaml").write_text(dump(load(overrides=settings.split())))
    ended = RunRecord(status, "2026-11-22T10:00:00+00:00", "2026-11-22T11:00:00+00:00")
    (run / f".{status.upper()}").write_text(json.dumps(to_json(ended)))


@pytest.mark.parametrize(
    ("status", "message"),
    [("", "no folder of that name"), ("success", "has finished"), ("running", "is still running")],
)
def test_a_run_that_cannot_go_on_is_reported_before_anything_is_started(status, message, watched, capsys, tmp_path):
    if status:
        finish(tmp_path / "run", status, "")
        (tmp_path / "run" / "flight").mkdir()
        (tmp_path / "run" / "flight" / "process.json").write_text(json.dumps(identity()))
    assert main(["train", "--resume", str(tmp_path / "run")]) == (1 if status else 2)
    assert message in capsys.readouterr().err
    assert not hasattr(watched, "words")


def test_data_that_is_not_there_is_reported_before_anything_is_started(watched, capsys, tmp_path, monkeypatch):
    assert main(["train", f"data={tmp_path / 'receipts'}"]) == 2
    assert "receipts does not exist" in capsys.readouterr().err
    assert not hasattr(watched, "words")
    assert main(["train", f"data={tmp_path / 'receipts'}", "data='data_samples'"]) == 0, "the last one counts, unquoted"
    monkeypatch.chdir(tmp_path)
    del watched.words
    assert main(["train", "crop=64"]) == 2
    assert "ocrlab samples make receipts, then ocrlab train data=receipts" in capsys.readouterr().err
    Path("exp.yaml").write_text("data: elsewhere\n")
    assert main(["train", "exp.yaml"]) == 2
    assert "elsewhere does not exist" in capsys.readouterr().err, "what a file says counts too"
    assert not hasattr(watched, "words")


@pytest.fixture
def pages(tmp_path) -> Path:
    """Return a data folder whose val/ has images and no annotations."""
    for name in ("train/images", "train/gts", "val/images"):
        (tmp_path / "pages" / name).mkdir(parents=True)
    return tmp_path / "pages"


@pytest.mark.parametrize(("words", "message"), [
    ([], "val has images/ but no gts/"),
    (["val_split=vla"], "no split 'vla'"),
    (["train_split=images", "val_split=train"], "no split 'images'"),
    (["val_split=train", "weights=none.ckpt"], "There is no checkpoint. Given: none.ckpt"),
    (["val_split=train", "weights=exp.ckpt"], "exp.ckpt cannot be read as a checkpoint. Given: a file that starts"),
])  # fmt: skip
def test_a_split_or_weights_that_are_not_there_wait_for_no_torch(words, message, watched, capsys, pages, monkeypatch):
    monkeypatch.chdir(pages)
    Path("exp.ckpt").write_text("no weights")
    status = 2 if "There is no" in message else 1  # what is there and cannot be used is not a wrong use
    assert main(["train", f"data={pages}", *words]) == status
    assert message in capsys.readouterr().err
    assert not hasattr(watched, "words")
    Path("exp.yaml").write_text("\n".join([f"data: {pages}", *(word.replace("=", ": ") for word in words)]))
    assert main(["train", "exp.yaml"]) == status, "the same of a file"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "# nothing\n", "schema: 1\n", "schema: 1\ndata: d\nencoder: resnet18\n"])
def test_a_run_whose_config_lost_its_settings_is_not_resumed_with_defaults(text, watched, tmp_path, capsys):
    finish(tmp_path / "run", "failure", "")
    (tmp_path / "run" / "config.yaml").write_text(text)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "config.yaml is not the config of a run. Given: a file without " in capsys.readouterr().err
    assert not hasattr(watched, "words")


def test_a_run_whose_data_or_last_step_is_gone_is_not_resumed(watched, tmp_path, capsys):
    finish(tmp_path / "run", "failure", f"data={tmp_path / 'gone'}")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "gone does not exist" in capsys.readouterr().err
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "last.ckpt").write_bytes(b"PK but cut off")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 1
    assert "last.ckpt cannot be read as a checkpoint. Given: a file of torch that is cut" in capsys.readouterr().err
    assert not hasattr(watched, "words")


def test_json_is_the_answer_of_the_child(watched, capsys):
    watched.printed = b'{"schema": 1, "status": "success", "metrics": {"hmean@0.5": 0.5}}\n'
    assert main(["train", "--json"]) == 0
    assert watched.words[-1] == "--json"
    record = json.loads(capsys.readouterr().out)
    assert (record["status"], record["metrics"], record["run"]) == ("success", {"hmean@0.5": 0.5}, "runs/x")


def test_debug_cuda_switches_on_what_helps_and_says_what_it_costs(calls, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEBUG_CUDA", "1")
    calls.noise = lambda: calls.__dict__.update(dump=os.environ["CUDA_COREDUMP_FILE"], log=os.environ["CUDA_LOG_FILE"])
    assert main(["train"]) == 0
    assert (calls.dump, calls.log) == (str(tmp_path / "runs" / "cuda-core-%p"), "stderr")
    assert "TORCH_USE_CUDA_DSA is not set" in capsys.readouterr().err


def test_nproc_starts_torchrun_under_watch(watched, calls, capsys, monkeypatch):
    monkeypatch.setattr("ocrlab.hardware.host.cores", lambda: 4)
    assert main(["train", "--nproc", "2", "crop=64", "--json"]) == 0
    assert watched.words[:3] == ["-m", "ocrlab.training.distributed.launch", "2"]
    assert watched.words[4:] == ["crop=64", "--json"]
    assert not Path(watched.words[3]).exists(), "the folder of the launcher's logs is gone"
    assert main(["train", "trainer.devices=3"]) == 0
    assert watched.words[1:3] == ["ocrlab.training.distributed.launch", "3"]
    assert main(["train", "--nproc", "1", "trainer.devices=3"]) == 0
    assert watched.words == ["-m", "ocrlab", "train", "trainer.devices=3", "--nproc", "1"]
    assert "cores" not in capsys.readouterr().err
    assert main(["train", "--nproc", "5"]) == 0
    assert "5 ranks share 4 cores" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [
    (["--nproc", "0"], "argument --nproc: 0 cannot be used. Needed: a whole number, 1 or more"),
    (["--nproc", "two"], "two cannot be used"),
    (["--nproc", "2", "--in-process"], "--in-process trains in a single process. Given: --nproc 2"),
    (["trainer.devices=2", "--in-process"], "Given: trainer.devices=2"),
    (["trainer.num_nodes=2"], "It follows the launcher: torchrun --nnodes N"),
    (["trainer.strategy=deepspeed"], "Needed: ddp"),
    (["trainer.strategy=fsdp"], "trainer.strategy=fsdp cannot be used (command line). Needed: ddp"),
])  # fmt: skip
def test_ranks_that_cannot_be_meant(words, message, calls, capsys):
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err
    assert calls.fit is None


def test_a_rank_of_a_launcher_trains_here_and_only_the_first_answers(calls, monkeypatch, capsys):
    monkeypatch.delenv("OCRLAB_WATCH")
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert main(["train", "crop=96", "--json"]) == 0
    assert calls.fit.config.crop == 96
    assert capsys.readouterr().out == ""
    assert main(["train", "--nproc", "2"]) == 2
    assert "Leave it out; torchrun says how many there are" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "words"), [
    ("", []),
    ("data: there\nruns: mine\n", []),
    ("data: there\nval_split: test\n", ["+data=here", "weights=a.ckpt", "crop=64"]),
    ("weights: b.ckpt\n", ["weights=none", "data='quoted place'", "data=last"]),
])  # fmt: skip
def test_it_reads_the_places_as_the_config_does(text: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    config = load(file, words)
    wanted = {name: getattr(config, name) or "" for name in train.DEFAULTS}
    assert train.read_places(file, words) == wanted


def test_an_unusable_place_for_runs_is_reported_before_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocrlab.run_folder.watcher_link.watched", lambda: False)  # as a person's command is not
    (tmp_path / "file").write_text("")
    for split in ("train", "val"):
        for kind in ("images", "gts"):
            (tmp_path / "pages" / split / kind).mkdir(parents=True)
    assert main(["train", "data=pages", "runs=file/deep"]) == 2
    stderr = capsys.readouterr().err
    assert "runs leads through a file" in stderr and "ocrlab watch" not in stderr


def test_it_costs_no_heavy_import() -> None:
    code = "import sys\nfrom ocrlab.cli import train\n"
    code += "train.check_places(train.read_places(None, ['data=data_samples']))\n"
    code += "print(sorted({'torch', 'numpy', 'cv2', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "[]\n", done.stderr
