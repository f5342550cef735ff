"""What every benchmark prints and writes: the options of its command line, a table in Markdown, and a file of all rounds."""

import argparse
import dataclasses
import datetime as dt
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rounds import Result

UNITS = {
    "calls_per_second": "calls/s",
    "rows_per_second": "rows/s",
    "mib_per_second": "MiB/s",
    "large_calls_per_second": "large calls/s",
    "slow_calls_per_second": "slow calls/s",
    "p50_us": "us, p50",
    "p99_us": "us, p99",
    "cpu_us": "us of server CPU a call",
}
"""How the figures are called in tables."""


def parser_of(documentation: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options that all benchmarks have; its description is the script's own documentation."""
    parser = argparse.ArgumentParser(description=(documentation or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after one that warms up")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds to a file")
    return parser


def print_table(results: Sequence[Result]) -> None:
    """Prints a table: a row for each contender and figure, with the ratio to the baseline's."""
    print("| workload | contender | figure | | baseline | ratio, over the rounds | us of server CPU a call |")
    print("|---|---|---|---|---|---|---|")
    for result in results:
        for row in _rows(result):
            print(f"| {' | '.join(row)} |", flush=True)
    print()
    for result in results:
        for name, why in result.refused.items():
            print(f"{result.workload}, {name}: refused: {why}")


def _rows(result: Result) -> Iterator[list[str]]:
    for metric in result.metrics:
        for name in result.rounds:
            head = [result.workload, name]
            if name in result.refused:
                yield [*head, "refused", "", result.baseline, "", ""]
                continue
            ratio = "1" if name == result.baseline else str(result.ratios(name, metric))
            value = f"{result.median(name, metric):.4g}"
            has_cpu = "cpu_us" in result.rounds[name][0]
            cpu = f"{result.median(name, 'cpu_us'):.0f}" if has_cpu else ""
            yield [*head, value, UNITS[metric], result.baseline, ratio, cpu]


def write_json(path: Path | None, benchmark: str, results: Sequence[Result]) -> None:
    """Writes all rounds to a file, if one was asked for.

    Args:
        path: The file.
        benchmark: Name of the script.
        results: What it measured.
    """
    if path is None:
        return
    made = {
        "benchmark": benchmark,
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "cores": os.cpu_count(),
        "results": [dataclasses.asdict(result) for result in results],
    }
    path.write_text(json.dumps(made, indent=1) + "\n")


def read_json(path: Path) -> tuple[str, list[Result]]:
    """Returns the date and the results that ``write_json`` wrote."""
    made = json.loads(path.read_text())
    return made["date"], [Result(**{**result, "metrics": tuple(result["metrics"])}) for result in made["results"]]
