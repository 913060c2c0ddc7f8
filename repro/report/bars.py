"""Horizontal bars: the parts of a step."""

from matplotlib.axes import Axes

from repro.report.style import INK, PART_NAMES, PARTS, is_dark, part_look


def drawable(parts: dict[str, float]) -> dict[str, float]:
    """The same shares with none below 0: what an unequal cut shortens is taken off the bubble."""
    positive = {part: max(0.0, share) for part, share in parts.items()}
    positive["bubble"] += sum(min(0.0, share) for share in parts.values())
    return positive


def stack(axes: Axes, bars: list[tuple[str, dict[str, float]]]) -> None:
    """One horizontal bar of parts in percent for each (name, parts), the first on top."""
    left = [0.0] * len(bars)
    for part, colour in PARTS.items():
        shares = [parts.get(part, 0.0) for _, parts in bars]
        label = PART_NAMES.get(part, part)
        places = range(len(bars))
        drawn = axes.barh(places, shares, left=left, label=label, height=0.72, **part_look(part))
        # A narrow part has no room for its number.
        numbers = [f"{share:.0f}" if share >= 4 else "" for share in shares]
        ink = INK[is_dark(colour)]
        texts = axes.bar_label(drawn, numbers, label_type="center", fontsize=8.5, color=ink)
        if part_look(part)["hatch"]:
            for text in texts:
                text.set_bbox({"facecolor": colour, "edgecolor": "none", "pad": 1})
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
