"""docs/related.md: the orders that it writes down are schedules, and print what the page shows."""

import re
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs/related.md").read_text(encoding="utf-8")


def test_the_orders_print_what_the_page_shows(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.S)
    exec(program, {})
    assert capsys.readouterr().out == shown
