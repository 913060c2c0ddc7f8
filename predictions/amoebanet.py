"""Draw amoebanet.svg: what the row of AmoebaNet-D in Table 2 of arXiv:1811.06965v5 would need.

    .venv/bin/python -m predictions.amoebanet   # also prints the numbers

Quoted are the printed cells, simulated those of plots/reference/table2.csv.
"""

from pathlib import Path

import pandas as pd

from repro.harness.text import TIMES
from repro.paper import theory
from repro.report import style
from repro.report.exhibit import printed

HOME = Path(__file__).parent
TABLE = HOME.parent / "plots/reference/table2.csv"
# Chosen to agree with the printed row: the slowest stage's share of the work, and the efficiency of
# a step with M > 1 over that of the base.
SHARES, EFFICIENCY = {2: 0.50, 4: 0.33, 8: 0.16}, 0.64


def main() -> None:
    """Draw the figure and print its numbers."""
    cells = printed("table2").query("model == 'amoebanet-d' and M > 1").reset_index(drop=True)
    simulated = pd.read_csv(TABLE).query("fidelity == 'simulated' and setting == 'time'")
    cells = cells.merge(simulated[["model", "K", "M", "ratio"]], on=["model", "K", "M"])
    pairs = [*zip(cells["K"], cells["M"], strict=True)]
    base = theory.speedup_over_k1(2, 1, "early")
    ideal = [theory.speedup_over_k1(K, M, "early") / base for K, M in pairs]
    needed = [EFFICIENCY * M / ((M - 1) * SHARES[K] + 1) for K, M in pairs]
    with style.styled():
        figure, ((axes,),) = style.grid(1, 1, 2.4)
        axes.bar(cells.index, cells["paper"], 0.5, color=style.QUOTED, label="quoted")
        ends = cells.index - 0.35, cells.index + 0.35
        axes.hlines(ideal, *ends, color=style.THEORY, label="ideal, recomputed early")
        axes.plot(cells["ratio"], **style.dots("simulated", label="simulated, cut by time"))
        axes.plot(needed, "ko", markerfacecolor="white", label="what it would need")
        axes.set_xticks(cells.index, [f"K={K}\nM={M}" for K, M in pairs])
        axes.set_ylabel(f"speed over K=2, M=1 ({TIMES})")
        style.legend_below(figure, axes)
        style.save(figure, HOME / "amoebanet.svg", "What AmoebaNet-D's row of Table 2 would need")
    off = cells.assign(needed=needed, off=needed / cells["paper"] - 1, ideal=cells["paper"] / ideal)
    print(off.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
