from __future__ import annotations

import json
from pathlib import Path

import pytest

from ocrlab.debug.bisect import sample_lists
from ocrlab.errors import ConfigError


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
    assert sorted(str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()) == [
        "data.yaml",
        "images/b.jpg",
        "labels/b.txt",
    ]
    assert sample_lists.write_samples(samples, None, tmp_path) == str(tmp_path / "d")


def test_folders_of_classes_do_not_join_files_with_the_same_name(tmp_path: Path) -> None:
    samples = sample_lists.read_samples(f"data={tree(tmp_path / 'd', 'cat/0.png', 'cat/1.png', 'dog/0.png')}")
    assert samples.names == ["cat/0.png", "cat/1.png", "dog/0.png"]


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


@pytest.mark.parametrize(
    ("content", "names", "left"),
    [
        ({"version": 2, "data": [{"id": 1}, {"id": 2}]}, "1", {"version": 2, "data": [{"id": 2}]}),
        ({"images": {"a.jpg": {"w": 1}, "b.jpg": {"w": 2}}}, "b.jpg", {"images": {"b.jpg": {"w": 2}}}),
        ({"a.jpg": [[1, 2]], "b.jpg": [[3, 4]]}, "b.jpg", {"b.jpg": [[3, 4]]}),
    ],
)
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
        ('{"a": 1}', "dict"),
        ('{"a": [[], []], "b": [[], []]}', "each of a, b"),
        ("{torn", "cannot be read"),
        ("[]", "no samples"),
    ],
)
def test_what_holds_no_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        sample_lists.read_samples(f"t={tmp_path / 't.json'}")
