"""The config of a run: order of layers, errors in words, and files that read back equal."""

import pytest

from ocrlab.config import schema as configs
from ocrlab.config.fields import flat
from ocrlab.config.schema import Config, dump, keys, load
from ocrlab.errors import ConfigError


def test_no_settings_are_the_defaults():
    assert load() == Config()


def test_layers_win_in_order(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("batch_size: 8\ncrop: 256\noptim: {lr: 1e-3}\n")
    preset = load(hardware="rtx3060_12gb_i5_16core")
    assert (preset.batch_size, preset.crop, preset.trainer.accelerator) == (16, 640, "cuda")
    both = load(file, ["+hardware=rtx3060_12gb_i5_16core", "crop=128"])
    assert (both.batch_size, both.crop, both.optim.lr, both.runtime.workers) == (8, 128, 1e-3, 8)


def test_a_preset_that_the_file_overrules_is_reported(tmp_path, caplog):
    file = tmp_path / "c.yaml"
    file.write_text("batch_size: 8\ncrop: 640\n")
    load(file, ["hardware=rtx3060_12gb_i5_16core"])
    assert "batch_size" in caplog.text
    assert "crop" not in caplog.text, "the same value is not a conflict"


def test_hardware_may_stand_in_the_file_and_the_command_line_wins(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("schema: 1\nhardware: rtx3060_12gb_i5_16core\n")
    assert load(file).batch_size == 16
    assert load(file, ["hardware=cpu_2core"]).trainer.accelerator == "cpu"
    assert load(file, ["hardware=none"]) == Config()


@pytest.mark.parametrize(("words", "key", "value"), [
    (["batch_size=4"], "batch_size", 4),
    (["batch_size=3", "batch_size=7"], "batch_size", 7),
    (["runtime.debug_cuda=true"], "runtime.debug_cuda", True),
    (["data=some dir/a=b"], "data", "some dir/a=b"),
    (["tracking=offline"], "tracking.mode", "offline"),
    (["lr=1e-3"], "optim.lr", 1e-3),
    (["dataloaders.train_dataloader.batch_size=2"], "batch_size", 2),
    (["model.encoder=resnet50"], "encoder", "resnet50"),
    (["name=2024"], "name", "2024"),
    (["name=no"], "name", "no"),
    (["name='null'"], "name", "null"),
    (["name=null"], "name", None),
    (["weights=none"], "weights", None),
    (["seed=010"], "seed", 10),
    (["runtime.cache=none"], "runtime.cache", "none"),
    (["runtime.channels_last=off"], "runtime.channels_last", False),
    (["post.unclip=1.5"], "post.unclip", 1.5),
    (["augment.scale=[0.5, 2]"], "augment.scale", (0.5, 2.0)),
    (["augment.scale=0.5,2e0"], "augment.scale", (0.5, 2.0)),
    (["optim={lr: 1e-4, ema: 0}"], "optim.ema", 0.0),
    ({"batch_size": 2, "augment.scale": [1, 1]}, "augment.scale", (1.0, 1.0)),
])  # fmt: skip
def test_overrides_that_work(words, key, value):
    actual = flat(load(overrides=words))[key]
    assert actual == value
    assert type(actual) is type(value)


@pytest.mark.parametrize(("word", "message"), [
    ("batch_size=eight", ["batch_size=eight", "command line", "a whole number from 1 to 65536"]),
    ("batch_size=0", ["a whole number from 1 to 65536"]),
    ("batch_size=99999999999", ["a whole number from 1 to 65536"]),
    ("crop=10000000", ["from 64 to 8192"]),
    ("trainer.max_steps=999999999999999999999", ["from 1 to 1000000000"]),
    ("runtime.workers=100000", ["from 0 to 1024"]),
    ("runtime.threads=1000000", ["from 1 to 1024"]),
    ("batch_size=true", ["a whole number"]),
    ("batch_size=4.5", ["a whole number"]),
    ("batch_size=", ["nothing"]),
    ("batch_size=[1, 2]", ["a whole number"]),
    ("batch_size", ["key=value"]),
    ("~batch_size", ["key=value"]),
    ("data=", ["not empty"]),
    ("crop=500", ["multiple of 32"]),
    ("encoder=resnet19", ["resnet18_slim, resnet18, resnet34, resnet50, mobilenet_v3_large"]),
    ("weights=coco", ["imagenet, receipts", "ends in .ckpt", "none"]),
    ("optim.lr=nan", ["a number above 0"]),
    ("optim.lr=inf", ["a number above 0"]),
    ("post.unclip=0", ["exact or a number above 0"]),
    ("augment.scale=2,1", ["low <= high"]),
    ("augment.scale=1", ["two numbers"]),
    ("targets.threshold_range=[0, 2]", ["from 0 to 1"]),
    ("tracking=off", ["tracking.mode", "disabled, offline, online, tensorboard"]),
    ("trainer=4", ["trainer.accelerator", "group"]),
    ("trainer.acumulate_grad_batches=4", ["trainer.accumulate_grad_batches"]),
    ("runtime.ddp_strategy=ddp", ["trainer.devices"]),
    ("hardware=rtx3060", ["rtx3060_12gb_i5_16core", "cpu_2core"]),
    ("schema=1", ["not a setting"]),
])  # fmt: skip
def test_refused_overrides_explain_what_is_needed(word, message):
    with pytest.raises(ConfigError) as caught:
        load(overrides=[word])
    for text in message:
        assert text in str(caught.value)
    assert "pydantic" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigError, match=r"2 settings.*\n.*batch_size.*\n.*crop"):
        load(overrides=["batch_size=0", "crop=1", "width=64"])


def test_an_epoch_count_never_silently_wins_over_steps_just_asked_for(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("trainer: {max_epochs: 5}\n")
    with pytest.raises(ConfigError, match="max_epochs=none"):
        load(file, ["max_steps=10"])
    assert load(file, ["max_steps=10", "max_epochs=none"]).trainer.max_steps == 10


@pytest.mark.parametrize("build", [lambda: Config(batch_size=0), lambda: Config(batch_size=True)])
def test_python_gets_the_same_words(build):
    with pytest.raises(ConfigError, match="batch_size has a wrong value.*from 1 to 65536"):
        build()


def test_assignment_is_checked():
    config = Config()
    with pytest.raises(ConfigError, match="lr has a wrong value.*above 0"):
        config.optim.lr = -1
    with pytest.raises(ConfigError, match="trainer.max_steps"):
        Config(trainer={"max_step": 3})
    with pytest.raises(ConfigError, match=r"config\.load\(hardware="):
        Config(hardware="cpu_2core")
    assert config == Config(), "a refused value leaves no trace, and two configs share no section"


@pytest.mark.parametrize(
    "words", [[], ["name=2024", "weights=imagenet", "lr=1e-5", "post.unclip=1.5"], ["name='none'"]]
)
def test_a_dumped_config_reads_back_equal(tmp_path, words):
    path = tmp_path / "config.yaml"
    config = load(overrides=words)
    path.write_text(dump(config))
    assert load(path) == config
    assert path.read_text().startswith("schema: 1\n")


def test_batchnorm_without_statistics_is_not_frozen():
    with pytest.raises(ConfigError, match="weights=receipts"):
        load(overrides=["optim.freeze_batchnorm=true"])
    assert load(overrides=["optim.freeze_batchnorm=true", "weights=imagenet"]).optim.freeze_batchnorm


def test_sharding_is_refused_by_name_wherever_it_is_set(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("schema: 1\ntrainer:\n  strategy: fsdp\n")
    pattern = "trainer.strategy='?fsdp'? cannot be used .*. Needed: ddp"
    for refused in (
        lambda: configs.load(overrides=["trainer.strategy=fsdp"]),
        lambda: configs.load(path),
        lambda: configs.apply(configs.load(), {"trainer.strategy": "fsdp"}),
    ):
        with pytest.raises(ConfigError, match=pattern):
            refused()
    assert configs.load(path, ["trainer.strategy=ddp"]).trainer.strategy == "ddp"


def test_every_key_is_explained_and_its_default_is_valid_text():
    for name, key in keys().items():
        assert key.need and "typing" not in key.need and "<class" not in key.need, name
        assert key.help, name
    assert keys().keys() == flat(Config()).keys()
    defaults = {name: key.default for name, key in keys().items()}
    assert load(overrides=defaults) == Config()
