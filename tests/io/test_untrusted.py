"""Files from outside as plain data: the part that every room of the project shares."""

import json
import math
import os
from pathlib import Path

import pytest

from repro.io.untrusted import from_json, open_regular, read_bytes, read_text


def test_a_link_is_followed_only_where_it_may_be(tmp_path: Path):
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "link", 7) == "content"
    with pytest.raises(ValueError, match=r"^is a symbolic link; put the file itself in its place$"):
        read_text(tmp_path / "link", 7, links=False)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ValueError, match=r"^not readable .*symbolic links"):
        read_text(tmp_path / "loop", 7)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match=r"^is no regular file"):
            open_regular(path)
    with pytest.raises(ValueError, match=r"^not readable .*directory"):
        read_bytes(tmp_path, 1)


def test_a_file_may_have_as_many_bytes_as_are_allowed_and_no_more(tmp_path: Path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="is larger than 1000 bytes"):
        read_bytes(tmp_path / "large", 1000)
    os.truncate(tmp_path / "large", 1000)
    assert read_bytes(tmp_path / "large", 1000) == bytes(1000)


def test_numbers_that_json_does_not_have_are_read_only_where_they_are_asked_for():
    value = {"best": math.inf, "state": 2**127, "low": [-math.inf]}
    assert from_json(json.dumps(value), any_number=True) == value
    assert math.isnan(from_json("NaN", any_number=True))
    with pytest.raises(ValueError, match="allowed are finite numbers"):
        from_json("[Infinity]")
    with pytest.raises(ValueError, match="more than 64 bits"):
        from_json(str(2**63))
    with pytest.raises(ValueError, match="limit") as caught:
        from_json("9" * 5000, any_number=True)
    assert "\n" not in str(caught.value)
