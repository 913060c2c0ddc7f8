import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from repro.harness.outside import read
from repro.io.untrusted import from_json


class Profile(BaseModel):
    name: str
    peak: float


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not readable as JSON"),
        ("[1", "not readable as JSON"),
        ("[" * 100_000, "too many lists and objects in each other"),
        ("9" * 100_000, "limit"),
        ('{"\0": 1}', "control character"),
    ],
)
def test_what_json_refuses(text: str, words: str):
    with pytest.raises(ValueError, match=words) as caught:
        from_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\xef\xbb\xbf{}", "not readable as JSON .*BOM"),
        (b'{"a": "\xff"}', "is no UTF-8 .* at byte 7"),
        (b"[]", r"holds \[\]: allowed is an object with the fields of Profile"),
        (b"null", "holds None"),
        (b"{}", "the field name is missing"),
        (b'{"name": "x", "peak": "fast"}', "peak = 'fast': Input should be a valid number"),
        (b'{"name": "x", "peak": 1}' + b" " * 100, "is larger than 100 bytes"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_one_line_that_names_it(
    tmp_path: Path, raw: bytes, words: str
):
    path = tmp_path / "profile.json"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"^{path}: .*{words}") as caught:
        read(path, Profile, limit=100)
    assert "\n" not in str(caught.value)


def test_nothing_is_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match=f"^{path}: is no regular file; give the path of one$"):
            read(path, Profile)
    with pytest.raises(ValueError, match=f"^{tmp_path}: is no regular file"):
        read(tmp_path, Profile)
    with pytest.raises(
        ValueError, match=r"none: not readable \(No such file or directory\); check the path$"
    ):
        read(tmp_path / "none", Profile)
