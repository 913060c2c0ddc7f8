"""Files from outside as plain data: the part that every room of the project shares."""

import os
from pathlib import Path

import pytest

from repro.io.untrusted import open_regular, read_bytes, read_text, refuse_links


def test_below_a_folder_of_ours_no_link_is_followed(tmp_path: Path):
    """Wherever it leads; the folder itself may be one, and so may what a user names."""
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "real/file").write_text("content")
    folder = tmp_path / "folder"
    folder.symlink_to("real")
    for name, target in {
        "to a file": "file",
        "to a folder": "sub",
        "out": tmp_path,
        "loop": "loop",
        "to nothing": "nothing",
    }.items():
        (folder / name).symlink_to(target)
        refusal = rf"^{folder / name}: is a link or no regular file; put the file or folder itself"
        for path in (folder / name, folder / name / "file"):
            with pytest.raises(ValueError, match=refusal):
                refuse_links(folder, path)
            with pytest.raises(ValueError, match=refusal):
                read_text(path, 7, folder)
    refuse_links(folder, folder, folder / "file", folder / "sub/later")
    assert read_text(folder / "file", 7, folder) == read_text(folder / "to a file", 7) == "content"
    with pytest.raises(ValueError, match="leads out of"):
        refuse_links(folder, folder / "sub/../../other")
    os.mkfifo(folder / "pipe")
    with pytest.raises(ValueError, match="no regular file"):
        refuse_links(folder, folder / "pipe")


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ValueError, match=r"^is no regular file"):
            open_regular(path)


def test_a_file_may_have_as_many_bytes_as_are_allowed_and_no_more(tmp_path: Path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="is larger than 1000 bytes"):
        read_bytes(tmp_path / "large", 1000)
    os.truncate(tmp_path / "large", 1000)
    assert read_bytes(tmp_path / "large", 1000) == bytes(1000)
