import warnings

import pytest

from repro.io import warned


@pytest.mark.filterwarnings("always")
def test_a_warning_is_one_line_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(warnings, "showwarning", None)  # put back at the end
    warned.once()
    for text in ("one\n line\x1b", "one\n line\x1b", "two"):
        warnings.warn(text, stacklevel=1)
    assert capfd.readouterr().err == "warning: one line\\x1b\nwarning: two\n"
