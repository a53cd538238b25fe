"""Factors and samples of a bisect: what is flipped, and how it gets into a command."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from ocrlab.config import schema as configs
from ocrlab.debug.bisect import factors, program_trials, sample_lists, training_trials
from ocrlab.debug.bisect.factors import Factor
from ocrlab.errors import ConfigError
from ocrlab.records import Cause, Verdict


def test_words_become_factors_also_with_colons_and_empty_sides() -> None:
    parsed = factors.parse_factors(["workers=8:0", "PYTORCH_CUDA_ALLOC_CONF=:expandable_segments:True", "amp=--amp:"])
    assert [(factor.name, factor.bad, factor.good) for factor in parsed] == [
        ("workers", "8", "0"),
        ("PYTORCH_CUDA_ALLOC_CONF", "", "expandable_segments:True"),
        ("amp", "--amp", ""),
    ]


def test_values_that_hold_colons_are_cut_at_two_and_never_by_guess() -> None:
    parsed = factors.parse_factors(["device=cuda:0::cpu", "url=http://a::http://b", "conf=max_split_size_mb:64:"])
    expected = [("cuda:0", "cpu"), ("http://a", "http://b"), ("max_split_size_mb:64", "")]
    assert [(factor.bad, factor.good) for factor in parsed] == expected
    with pytest.raises(ConfigError, match="device=cuda::0:cpu or device=cuda:0::cpu"):
        factors.parse_factors(["device=cuda:0:cpu"])


@pytest.mark.parametrize("words", [["workers"], ["workers=8"], ["=8:0"], ["a=1:1"], ["a=1:0", "a=2:0"], ["a b=1:0"]])
def test_words_that_are_no_factors_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--factor"):
        factors.parse_factors(words)


def verdict(*causes: tuple[str, float]) -> Verdict:
    return Verdict(causes=[Cause(name, sure) for name, sure in causes])


def test_a_verdict_orders_the_factors_and_nothing_is_ever_ruled_out() -> None:
    names = [Factor(name, "1", "0") for name in ("decoder", "workers", "start method", "data")]
    parsed = factors.suspicion_weights(names, verdict(("loader.fork_deadlock", 0.95)))
    assert parsed[2] > parsed[1] > parsed[0] == 1.0
    assert factors.suspicion_weights(names, None) == [1.0] * 4
    assert min(factors.suspicion_weights(names, verdict(("gpumem.capacity", 0.9)))) == 1.0


def test_every_suspect_is_a_factor_that_there_is() -> None:
    from ocrlab.config import schema as configs
    from ocrlab.debug.bisect import training_trials

    risky = {"runtime.workers": 4, "trainer.accelerator": "cuda", "runtime.compile": True, "optim.grad_clip": 0}
    full = configs.load(None, risky)
    flippable = {factor.name for factor in training_trials.config_factors(full)}
    assert {name for names in factors.SUSPECTS.values() for name in names} <= flippable


def test_every_suspicion_is_of_causes_that_there_are() -> None:
    from ocrlab.debug.diagnosis import catalogue

    for start in factors.SUSPECTS:
        assert any(name.startswith(start) for name in catalogue.load().entries), start


def test_names_of_other_programs_are_recognized() -> None:
    names = [
        "--num-workers", "OMP_NUM_THREADS", "use_amp", "imgsz", "train.per_device_train_batch_size",
        "base_lr", "x",
    ]  # fmt: skip
    plain = [factors._plain(name) for name in names]
    assert plain == ["workers", "threads", "precision", "crop", "batch size", "learning rate", "x"]


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_files_with_the_same_stem_are_a_sample_and_single_files_stay(tmp_path: Path) -> None:
    names = [f"images/{n}.jpg" for n in "abc"] + [f"labels/{n}.txt" for n in "abc"]
    samples = sample_lists.read_samples(f"data={tree(tmp_path / 'd', *names, 'data.yaml')}")
    assert samples.names == ["images/a.jpg", "images/b.jpg", "images/c.jpg"]
    place = Path(sample_lists.write_samples(samples, [1], tmp_path / "run"))
    expected = ["data.yaml", "images/b.jpg", "labels/b.txt"]
    assert sorted(str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()) == expected
    assert sample_lists.write_samples(samples, None, tmp_path) == str(tmp_path / "d")


def test_lines_keep_their_head_and_what_lies_beside_them(tmp_path: Path) -> None:
    tree(tmp_path / "d", "a.jpg")
    (tmp_path / "d" / "t.csv").write_text("file,label\na.jpg,1\n\nb.jpg,2")
    samples = sample_lists.read_samples(f"t={tmp_path / 'd' / 't.csv'}")
    assert samples.names == ["2 (`a.jpg,1`)", "4 (`b.jpg,2`)"]
    place = Path(sample_lists.write_samples(samples, [1], tmp_path / "run"))
    assert place.read_text() == "file,label\nb.jpg,2\n"
    assert (place.parent / "a.jpg").read_text() == "a.jpg", "names in a list are often relative to it"
    assert (tmp_path / "d" / "t.csv").read_text().startswith("file,label\na.jpg")


def test_bytes_that_are_no_text_and_ends_of_lines_stay_as_they_are(tmp_path: Path) -> None:
    lines = [b"a.jpg 1\r\n", b"caf\xe9.jpg 2\r\n", "one\u2028line 3\r\n".encode()]
    (tmp_path / "t.txt").write_bytes(b"".join(lines))
    samples = sample_lists.read_samples(f"t={tmp_path / 't.txt'}")
    assert len(samples.names) == 3
    for number, line in enumerate(lines):
        assert Path(sample_lists.write_samples(samples, [number], tmp_path / f"run-{number}")).read_bytes() == line


def test_a_row_of_a_table_may_have_several_lines(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('file,text\na,"one\ntwo"\nb,"say ""x"""\n')
    samples = sample_lists.read_samples(f"t={tmp_path / 't.csv'}")
    assert [name.split(" ")[0] for name in samples.names] == ["2", "4"], "the line at which a row begins"
    assert Path(sample_lists.write_samples(samples, [0], tmp_path / "run")).read_text() == 'file,text\na,"one\ntwo"\n'
    (tmp_path / "inches.tsv").write_text('size\n3"\n4\n')
    assert len(sample_lists.read_samples(f"t={tmp_path / 'inches.tsv'}").names) == 2


def test_entries_of_a_json_list(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([{"id": 1}, {"id": 2}]))
    samples = sample_lists.read_samples(f"t={tmp_path / 't.json'}")
    assert (samples.unit, samples.names[1]) == ("record", '1 (`{"id": 2}`)')
    assert json.loads(Path(sample_lists.write_samples(samples, [1], tmp_path / "run")).read_text()) == [{"id": 2}]


@pytest.mark.parametrize(("content", "names", "left"), [
    ({"version": 2, "data": [{"id": 1}, {"id": 2}]}, "1", {"version": 2, "data": [{"id": 2}]}),
    ({"images": {"a.jpg": {"w": 1}, "b.jpg": {"w": 2}}}, "b.jpg", {"images": {"b.jpg": {"w": 2}}}),
    ({"a.jpg": [[1, 2]], "b.jpg": [[3, 4]]}, "b.jpg", {"b.jpg": [[3, 4]]}),
])  # fmt: skip
def test_records_below_a_key_or_by_name(tmp_path: Path, content: object, names: str, left: object) -> None:
    (tmp_path / "t.json").write_text(json.dumps(content))
    samples = sample_lists.read_samples(f"t={tmp_path / 't.json'}")
    assert [name.split(" ")[0] for name in samples.names][1:] == [names]
    assert json.loads(Path(sample_lists.write_samples(samples, [1], tmp_path / "run")).read_text()) == left
    assert json.loads((tmp_path / "t.json").read_text()) == content


def test_images_of_a_coco_file_take_their_annotations_along(tmp_path: Path) -> None:
    content = {"images": [{"id": 7, "file_name": "a.jpg"}, {"id": 9, "file_name": "b.jpg"}], "info": {"year": 2026}}
    content["annotations"] = [{"id": 1, "image_id": 7}, {"id": 2, "image_id": 9}, {"id": 3, "image_id": 9}]
    content["categories"] = [{"id": 1, "name": "text"}]
    (tmp_path / "t.json").write_text(json.dumps(content))
    samples = sample_lists.read_samples(f"t={tmp_path / 't.json'}")
    assert (samples.unit, samples.names) == ("image", ["7 (`a.jpg`)", "9 (`b.jpg`)"])
    cut = json.loads(Path(sample_lists.write_samples(samples, [1], tmp_path / "run")).read_text())
    assert [file["id"] for file in cut["annotations"]] == [2, 3]
    assert [file["id"] for file in cut["images"]] == [9]
    assert (cut["categories"], cut["info"]) == (content["categories"], content["info"])


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"a": 1}', "dict"), ('{"a": [[], []], "b": [[], []]}', "each of a, b"),
        ("{torn", "cannot be read"), ("[]", "no samples"),
    ],
)  # fmt: skip
def test_what_holds_no_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        sample_lists.read_samples(f"t={tmp_path / 't.json'}")


def test_each_key_in_which_two_files_differ_is_a_factor(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: {b: 1, c: [1, 2]}\nd: x\nonly: true\nsame: 0\n")
    (tmp_path / "good.yaml").write_text("a: {b: 2, c: [1]}\nd: x\nsame: 0\nnew: {deep: 1}\n")
    words = [f"cfg={tmp_path / 'bad.yaml'}:{tmp_path / 'good.yaml'}", "w=4:0"]
    flips = program_trials.split_config_files(factors.parse_factors(words))
    sides = [(factor.name, factor.bad, factor.good) for factor in flips]
    assert sides == [
        ("a.b", "1", "2"), ("a.c", "[1, 2]", "[1]"), ("only", "true", "(absent)"),
        ("new.deep", "(absent)", "1"), ("w", "4", "0"),
    ]  # fmt: skip
    start = program_trials.starter(["train.py", "--config={cfg}", "{w}"], flips)
    (factor, env) = start(0b00001, None, tmp_path / "one")
    assert (factor[2], env) == ("0", {})
    content = yaml.safe_load(Path(factor[1].partition("=")[2]).read_text())
    assert content == {"a": {"b": 1, "c": [1]}, "d": "x", "same": 0, "new": {"deep": 1}}
    whole, _ = start(0b11111, None, tmp_path / "two")
    assert yaml.safe_load(Path(whole[1].partition("=")[2]).read_text())["only"] is True


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_toml_reads_back_as_it_was(tmp_path: Path) -> None:
    import tomllib

    text = 'lr = 0.1\nnames = ["a \\"b\\"", "ü"]\nwhen = 2026-11-25T08:00:00\n'
    text += '[a.b]\nc = true\nd = inf\n[[rows]]\n"x y" = 1\n'
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    (tmp_path / "good.toml").write_text(text.replace("c = true", "c = false"), encoding="utf-8")
    flips = program_trials.split_config_files(
        factors.parse_factors([f"c={tmp_path / 'bad.toml'}:{tmp_path / 'good.toml'}"])
    )
    assert [(factor.name, factor.bad, factor.good) for factor in flips] == [("a.b.c", "true", "false")]
    for run, name in ((1, "bad"), (0, "good")):
        words, _ = program_trials.starter(["train.py", "{c}"], flips)(run, None, tmp_path / f"run-{run}")
        written = tomllib.loads(Path(words[1]).read_text(encoding="utf-8"))
        assert written == tomllib.loads((tmp_path / f"{name}.toml").read_text(encoding="utf-8"))


def test_files_that_cannot_be_taken_apart_are_refused(tmp_path: Path) -> None:
    for name, content in (("a", {"x": 1}), ("b", {"x": 1}), ("c", [1]), ("d", {"w": 2})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))

    def split(bad: str, good: str, *more: str) -> object:
        words = [f"f={tmp_path / bad}.json:{tmp_path / good}.json", *more]
        return program_trials.split_config_files(factors.parse_factors(words))

    with pytest.raises(ConfigError, match="have the same content"):
        split("a", "b")
    with pytest.raises(ConfigError, match="has no keys to compare"):
        split("a", "c")
    with pytest.raises(ConfigError, match="Two factors are called"):
        split("a", "d", "x=1:0")
    with pytest.raises(ConfigError, match="z.json does not exist"):
        split("a", "z")


FLIPS = factors.parse_factors(["workers=8:0", "OMP_NUM_THREADS=8:1", "amp=--amp:"])


def test_words_are_filled_in_and_the_rest_is_environment() -> None:
    start = program_trials.starter(["train.py", "--workers={workers}", "{amp}", "", "x{y}z{"], FLIPS)
    assert start(0b111, None, Path()) == (["train.py", "--workers=8", "--amp", "", "x{y}z{"], {"OMP_NUM_THREADS": "8"})
    assert start(0, None, Path()) == (["train.py", "--workers=0", "", "x{y}z{"], {"OMP_NUM_THREADS": "1"})


def test_a_name_in_braces_that_is_no_factor_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a factor"):
        program_trials.starter(["train.py", "--workers={worker}"], FLIPS)


@pytest.mark.parametrize("words", [["--workers", "8"], ["--workers=8"], ["workers=8"]])
def test_a_value_that_was_left_in_the_command_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="cannot be changed"):
        program_trials.starter(["train.py", *words], FLIPS)


def test_samples_that_the_command_does_not_take_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a\nb\n")
    samples = sample_lists.read_samples(f"rows={tmp_path / 'list.txt'}")
    with pytest.raises(ConfigError, match="cannot be changed") as error:
        program_trials.starter(["train.py", "--list", str(tmp_path / "list.txt")], [], samples)
    assert "Needed: {rows}" in str(error.value)
    assert program_trials.starter(["train.py"], [], samples)(0, None, tmp_path)[1] == {
        "rows": str(tmp_path / "list.txt")
    }


def test_only_what_is_not_safe_already_is_flipped() -> None:
    safe = {"runtime.workers": 0, "runtime.threads": 1, "trainer.precision": "fp32", "batch_size": 1, "crop": 64}
    safe |= {"trainer.accelerator": "cpu", "runtime.channels_last": False, "optim.lr": 1e-4}
    expected = ["decoder", "opencv threads", "data"]
    assert [factor.name for factor in training_trials.config_factors(configs.load(None, safe))] == expected
    full = configs.load(None, {"runtime.workers": 4, "trainer.accelerator": "cuda", "runtime.compile": True})
    assert len(training_trials.config_factors(full)) == 14
    explodes = training_trials.config_factors(configs.load(None, {**safe, "optim.lr": 10, "optim.grad_clip": 0}))
    assert [factor.good for factor in explodes][1:3] == ["optim.lr=0.0001", "optim.grad_clip=1.0"]


def test_against_makes_factors_of_what_differs() -> None:
    config = configs.load(None, {"batch_size": 16})
    (factor,) = training_trials.factors_against(config, ["batch_size=2", "optim.lr=0.002"])
    assert (factor.bad, factor.good, factor.overrides) == ("batch_size=16", "batch_size=2", ("batch_size=2",))
    with pytest.raises(ConfigError, match="changes nothing"):
        training_trials.factors_against(config, ["batch_size=16"])


def test_a_run_is_a_job_with_the_flips_in_it(tmp_path: Path) -> None:
    config = configs.load(None, {"batch_size": 4, "runtime.workers": 2, "trainer.accelerator": "cpu"})
    flips = training_trials.config_factors(config)
    names = [factor.name for factor in flips]
    start = training_trials.starter(config, flips, tmp_path / "bisect", 10)
    place = tmp_path / "bisect" / "one"
    place.mkdir()
    without = (1 << len(names)) - 1 - (1 << names.index("data"))
    alone = json.loads(Path(start(without, None, place)[0][-1]).read_text())
    assert alone["synthetic"]
    assert alone["names"] is None, "names of synthetic pages once took the place of the user's"
    unchanged = sum(1 << names.index(name) for name in ("data", "decoder"))
    words, env = start(unchanged, None, place)
    job = json.loads(Path(words[-1]).read_text())
    assert env == {}
    assert job["overrides"]["batch_size"] == "1"
    assert job["overrides"]["runtime.workers"] == "0"
    assert "decoder" not in job["overrides"]
    assert "synthetic" not in job
    assert job["start_method"] == "spawn"
    assert job["crops"] == 40, "as many crops as before, whatever the batch size"
    assert configs.load(job["config"], job["overrides"]).batch_size == 1


def test_a_run_of_some_pages_sees_each_as_often(tmp_path: Path) -> None:
    config = configs.load(None, {"batch_size": 4})
    folder = tmp_path / "bisect"
    start = training_trials.starter(config, training_trials.config_factors(config), folder, 10)
    (folder / "pages.json").write_text(json.dumps({"names": [f"page_{index}" for index in range(16)]}))
    (folder / "one").mkdir()
    words, _ = start(2**10 - 1, [3, 5], folder / "one")
    job = json.loads(Path(words[-1]).read_text())
    assert job["pages"] == [3, 5]
    assert job["crops"] == 3 * 2, "40 crops of 16 pages are two and a half rounds"


def test_smaller_batches_make_as_many_steps_as_the_same_crops_need(tmp_path: Path) -> None:
    config = configs.load(None, {"batch_size": 4, "trainer.max_steps": 10})
    start = training_trials.starter(
        config, training_trials.factors_against(config, ["batch_size=1"]), tmp_path / "bisect", 10
    )
    (tmp_path / "bisect" / "one").mkdir()
    job = json.loads(Path(start(0, None, tmp_path / "bisect" / "one")[0][-1]).read_text())
    assert configs.load(job["config"], job["overrides"]).trainer.max_steps == 40
    job = json.loads(Path(start(1, None, tmp_path / "bisect" / "one")[0][-1]).read_text())
    assert configs.load(job["config"], job["overrides"]).trainer.max_steps == 10
