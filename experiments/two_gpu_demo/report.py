"""One device, naive model parallelism and GPipe beside each other for each model and M."""

from collections.abc import Callable, Mapping
from functools import partial
from math import isnan, nan

from experiments.two_gpu_demo.figures import figures as figures
from experiments.two_gpu_demo.points import (
    STRATEGY_NAMES,
    Point,
    key_of,
    over_one_device,
    points,
    runs_by_point,
)
from experiments.two_gpu_demo.runs import NAME, STRATEGIES
from repro.harness.results import Results, Run
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, amount, declared, place_column, plain, quotient, share
from repro.report.ratio import NO_INTERVAL
from repro.report.style import model_name
from repro.report.table import Table

SHOWN = Shown(
    NAME,
    (
        "model",
        "K",
        "M",
        f"speedup over one device {STRATEGY_NAMES['naive']}",
        f"speedup over one device {STRATEGY_NAMES['gpipe']}",
        f"idle/total {STRATEGY_NAMES['naive']}",
        f"idle/total {STRATEGY_NAMES['gpipe']}",
    ),
)


def tables(results: Results) -> list[Table]:
    lines = points(results)
    return [strategies(results, lines)] if lines else []


def answer(tables: Mapping[str, Table]) -> str:
    """The greatest speedup of both ways to use the devices, and what it leaves out.

    More micro-batches slow one device down, so a speedup at the same M is not the gain over the
    fastest way to use one device.
    """
    naive, gpipe = (
        tables[NAME].numbers(f"speedup over one device {STRATEGY_NAMES[strategy]}")[-1]
        for strategy in ("naive", "gpipe")
    )
    return (
        f"At the same M GPipe has at most {gpipe} times the throughput of one device, and naive "
        f"model parallelism {naive} times. {best_against_best(tables[NAME])}"
    ).strip()


def best_against_best(table: Table) -> str:
    """The fastest of GPipe's steps over the fastest of one device, whatever their M.

    Empty where a machine would be held against another, or where either was not run.
    """
    data = table.data
    if "where" in ("".join(name) for name in data.columns):
        return ""
    ratios = []
    for model in dict.fromkeys(model_name(name) for name in data["", "model"]):
        lines = table.where("model", [model]).data.to_dict("records")
        one, gpipe = (
            max((rate for line in lines if (rate := line["examples/s", name]) > 0), default=nan)
            for name in (STRATEGY_NAMES["single"], STRATEGY_NAMES["gpipe"])
        )
        if not isnan(gpipe / one):
            ratios.append(f"{gpipe / one:.2f} times ({model})")
    return f"Each at its own fastest M, GPipe has {' and '.join(ratios)}." if ratios else ""


def strategies(results: Results, lines: list[Point]) -> Table:
    """Throughput, speedup over one device, idle time and memory of each strategy."""
    grid = runs_by_point(results)

    def of_run(describe: Callable[[Run], Cell], strategy: str, point: Point) -> Cell:
        return grid.cell(describe, *key_of(strategy, point))

    def group(
        name: str, describe: Callable[[Run], Cell], *chosen: str, csv: str = ""
    ) -> list[Column[Point]]:
        return [
            Column(
                (name, STRATEGY_NAMES[strategy]),
                partial(of_run, describe, strategy),
                csv=(csv or name, STRATEGY_NAMES[strategy]),
            )
            for strategy in chosen
        ]

    def speedup(strategy: str) -> Column[Point]:
        shown = STRATEGY_NAMES[strategy]
        name = "speedup over one device"
        return Column(
            (name, shown),
            partial(of_run, lambda run: quotient(over_one_device(results, run)), strategy),
            ends=((name, f"{shown}: low"), (name, f"{shown}: high")),
        )

    columns = [
        *coordinates(lines),
        *group("examples/s", lambda run: amount(run.throughput, 1), *STRATEGIES),
        speedup("naive"),
        speedup("gpipe"),
        *group("idle/total", lambda run: share(run.bubble_idle_over_total), "naive", "gpipe"),
        *group("peak of each device (MiB)", peaks, *STRATEGIES, csv="peak of the fullest (MiB)"),
    ]
    note = (
        "Measured: the speedup is taken inside a round, at the same M, N and re-materialization, "
        f"with a bootstrap 95 % interval over rounds ({NO_INTERVAL}; ~ where it spans 1). "
        "Idle/total is the share of K x step in which a device does nothing."
    )
    title = "What do K devices gain over one, and how does that change with M?"
    return declared(NAME, title, note, lines, columns, NAME)


def coordinates(lines: list[Point]) -> list[Column[Point]]:
    """The columns model, K and M, and before them what differs between lines besides."""
    columns = place_column(lines, lambda point: point.where)
    if len({point.remat for point in lines}) > 1:
        columns.append(Column("re-materialization", lambda point: plain(point.remat)))
    return [
        *columns,
        Column("model", lambda point: Cell(point.model, model_name(point.model))),
        Column("K", lambda point: plain(point.K)),
        Column("M", lambda point: plain(point.M)),
    ]


def peaks(run: Run) -> Cell:
    """Peak memory of each device in MiB; the csv file has that of the fullest."""
    each = [f"{1024 * peak:.0f}" for peak in run.peak_gib_per_stage]
    return Cell(1024 * run.peak_gib_max, ", ".join(each) or "-")
