"""What a torn snapshot is known by where there is no torch."""

import zipfile

import pytest

from ocrlab.debug.flight_record.ring_reader import SEAL, is_whole


def test_a_file_without_its_end_is_torn(tmp_path):
    path = tmp_path / "snapshot-0-a.pt"
    path.write_bytes(b"weights" + SEAL)
    assert is_whole(path)
    path.write_bytes(b"weights" + SEAL[:-1])
    assert not is_whole(path)


@pytest.mark.parametrize("cut", [0, 1, 30])
def test_zip_files_have_an_end_of_their_own(tmp_path, cut):
    path = tmp_path / "snapshot-0-a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "x" * 100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    assert is_whole(path) == (cut == 0)


def test_missing_and_empty_snapshots_are_incomplete(tmp_path):
    path = tmp_path / "snapshot-0-a.pt"
    assert not is_whole(path)
    path.touch()
    assert not is_whole(path)
