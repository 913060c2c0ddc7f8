"""Files from outside as plain data: the part that every room of the project shares."""

import os
from pathlib import Path

import pytest

from repro.io.untrusted import open_regular, read_bytes, read_text


def test_in_a_folder_of_others_a_link_is_refused(tmp_path: Path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "file").write_text("content")
    (inner / "link").symlink_to("../file")
    (tmp_path / "way").symlink_to("inner")
    (inner / "out").symlink_to(tmp_path)
    assert read_text(inner / "link", 7) == read_text(tmp_path / "way/../file", 7) == "content"
    for folder in (inner, tmp_path):
        with pytest.raises(ValueError, match=r"^link is a link; put the file itself there"):
            read_text(tmp_path / "way/link", 7, folder)
    with pytest.raises(ValueError, match=rf"^file is a link out of {inner}; put the file itself"):
        read_text(inner / "out/file", 7, inner)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ValueError, match=r"^not readable .*symbolic links"):
        read_text(tmp_path / "loop", 7)


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
