"""Draws the ratios of ``against_echo.py --json FILE`` as bars: the server and its peers against the echo, which is the line at 1."""

import argparse
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report import read_json
from rounds import Ratios, Result

COLOURS = {
    "unary": "#0072b2",
    "stream": "#56b4e9",
    "tf_rpc": "#e69f00",
    "tesseract": "#cc79a7",
    "pytriton": "#009e73",
}
"""Told apart by most people who see colours differently (Okabe and Ito, 2008)."""
LABELS = {
    "unary": "Gradserve, unary",
    "stream": "Gradserve, stream",
    "tf_rpc": "TensorFlow RPC (own client)",
    "tesseract": "Tesseract (own client)",
    "pytriton": "PyTriton (own client)",
}
PANELS = {
    "p50_us": "One caller: time of a call, times the echo's (lower is better)",
    "calls_per_second": "Many callers, x of shape (1, 16): calls per second, times the echo's (higher is better)",
}
WIDTH = 0.8
"""Of all bars of a workload together; the distance of two workloads is 1."""


def draw_panel(axes: Axes, results: list[Result], metric: str) -> None:
    """Draws a group of bars for each workload, with the range over the rounds, and the numbers above."""
    names = [name for name in COLOURS if any(result.rounds.get(name) for result in results)]
    width = WIDTH / len(names)
    for index, name in enumerate(names):
        for place, result in enumerate(results):
            x = place - WIDTH / 2 + (index + 0.5) * width
            if name in result.refused:
                axes.text(x, 1.05, "refused", rotation=90, ha="center", va="bottom", fontsize=7, color=COLOURS[name])
            elif name in result.rounds:
                draw_bar(axes, x, width, result.ratios(name, metric), COLOURS[name])
    axes.axhline(1, color="black", linewidth=1)
    axes.text(1.005, 1, "echo", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_xticks(range(len(results)), [result.workload for result in results])
    axes.set_title(PANELS[metric], fontsize=10, loc="left")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.15)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw_bar(axes: Axes, x: float, width: float, ratios: Ratios, colour: str) -> None:
    """Draws one bar, from the line of the echo up or down."""
    spread = [[ratios.median - ratios.least], [ratios.greatest - ratios.median]]
    axes.bar(x, ratios.median - 1, width * 0.92, bottom=1, color=colour, yerr=spread, ecolor="#444444")
    above = ratios.median >= 1
    edge = ratios.greatest * 1.06 if above else ratios.least / 1.06
    axes.text(x, edge, f"{ratios.median:.2g}", ha="center", va="bottom" if above else "top", fontsize=7)


def draw(date: str, results: list[Result], path: Path) -> None:
    """Draws a panel for each metric that there is, and writes the picture."""
    panels = {metric: [result for result in results if metric in result.metrics] for metric in PANELS}
    panels = {metric: of_panel for metric, of_panel in panels.items() if of_panel}
    figure = Figure(figsize=(10, 1 + 3.6 * len(panels)), layout="constrained")
    for axes, (metric, of_panel) in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True
    ):
        draw_panel(axes, of_panel, metric)
    names = [name for name in COLOURS if any(name in result.rounds for result in results)]
    bars = [figure.axes[0].bar(0, 0, bottom=1, color=COLOURS[name])[0] for name in names]
    figure.legend(
        bars, [LABELS[name] for name in names], loc="outside lower center", ncols=len(names), fontsize=8, frameon=False
    )
    rounds = len(results[0].rounds[results[0].baseline])
    figure.suptitle(
        f"Against a bare grpc.aio echo of the same bytes, {date}: median and range of {rounds} rounds", fontsize=11
    )
    figure.savefig(path, dpi=120)


def main() -> None:
    """Reads the file and draws it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("json", type=Path, help="what against_echo.py --json wrote")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "against_echo.png")
    options = parser.parse_args()
    draw(*read_json(options.json), options.output)


if __name__ == "__main__":
    main()
