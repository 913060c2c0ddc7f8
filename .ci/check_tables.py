"""Check that a report's tables are filled: `check_tables.py PLOTS`; a line for each fault."""

import csv
import math
import sys
from pathlib import Path


def faults(plots: Path) -> list[str]:
    """What is wrong with the csv files under `plots`, one line each."""
    tables = {
        path.name: list(csv.DictReader(path.open(encoding="utf-8")))
        for path in plots.rglob("*.csv")
    }
    found = [f"{name} has no rows" for name, rows in tables.items() if not rows]
    measured = [
        row
        for row in tables.get("runs.csv", [])
        if row["experiment"] == "table2" and row["fidelity"] == "measured" and not row["control"]
    ]
    done = [row for row in measured if row["status"] == "done" and float(row["K"]) > 1]
    if not done:
        found.append("runs.csv has no run of table2 that was measured with K > 1")
    found += [
        f"runs.csv: table2, {row['run']}: no number in speedup_vs_k2m1"
        for row in done
        if not _is_number(row["speedup_vs_k2m1"])
    ]
    measured = [row for row in tables.get("runs.csv", []) if row["fidelity"] == "measured"]
    if not any(_is_number(row["speedup_vs_k1"]) for row in measured if float(row["K"] or 1) > 1):
        found.append("runs.csv has no measured speedup over one stage")
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
