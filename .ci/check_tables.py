"""Check that a report's tables are filled: `check_tables.py PLOTS`; a line for each fault."""

import csv
import math
import re
import sys
from pathlib import Path


def faults(plots: Path) -> list[str]:
    """What is wrong with the csv files under `plots`, one line each."""
    tables = {
        path.name: list(csv.DictReader(path.open(encoding="utf-8")))
        for path in plots.rglob("*.csv")
    }
    found = [f"{name} has no rows" for name, rows in tables.items() if not rows]
    done = [
        row
        for row in tables.get("table2_long.csv", [])
        if row["status"] == "done" and float(row["K"]) > 1
    ]
    if not done:
        found.append("table2_long.csv has no run that was measured with K > 1")
    for row in done:
        ratios = {
            name: cell for name, cell in row.items() if re.fullmatch(r"\w+ over K=2, M=1", name)
        }
        if not any(map(_is_number, ratios.values())):
            cells = ", ".join(ratios) or "any column of ratios"
            found.append(
                f"table2_long.csv: {row['model']} K={row['K']} M={row['M']}: no number in {cells}"
            )
    if not any(_is_number(row.get("measured over K=1")) for row in done):
        found.append("table2_long.csv has no measured speedup")
    if not any(plots.rglob("report.html")):
        found.append("report.html was not written")
    return found


def _is_number(cell: str | None) -> bool:
    try:
        return math.isfinite(float(cell or "nan"))
    except ValueError:
        return False


def main() -> int:
    """Print the faults of the folder that is named on the command line."""
    plots = Path(sys.argv[1])
    found = faults(plots)
    for line in found:
        print(f"check_tables.py: {line}", file=sys.stderr)
    if not found:
        print(
            f"{len(list(plots.rglob('*.csv')))} tables, none empty; Table 2's measured cells are "
            "numbers"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
