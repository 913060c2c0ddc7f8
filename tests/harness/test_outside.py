from pathlib import Path

import pytest
from pydantic import BaseModel

from repro.harness.outside import read


class Profile(BaseModel):
    name: str
    peak: float


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"[1", "not readable as JSON"),
        (b"[" * 100_000, "too many lists and objects in each other"),
        (b"9" * 100_000, "limit"),
        (b"\xef\xbb\xbf{}", "not readable as JSON .*BOM"),
        (b'{"a": "\xff"}', "is no UTF-8 .* at byte 7"),
        (b"[]", r"holds \[\]: allowed is an object in braces"),
        (b"{}", "the field name is missing"),
        (b'{"name": "x", "peak": "fast"}', "peak = 'fast': must be a valid number"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_one_line_that_names_it(
    tmp_path: Path, raw: bytes, words: str
):
    path = tmp_path / "profile.json"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"^{path}: .*{words}") as caught:
        read(path, Profile, limit=100_000)
    assert "\n" not in str(caught.value)
