"""Where a call's time goes: seconds by stage, as the server's metrics have them, and CPU time by thread, as Linux counts it.

Stages are what passes on the clock, in which a thread may wait for the interpreter, and calls that are joined share one
computation; threads are CPU time. Both are divided by the number of calls, so that they cannot be added to each other.
"""

import argparse
import asyncio
import collections
import functools
import statistics
import time
import urllib.request
from pathlib import Path

from clock import Figures, figures_of_tasks
from prometheus_client.parser import text_string_to_metric_families
from report import parser_of, write_json
from rounds import Measure, Result, interleave
from servers import HERE, SMALL, Call, request, server_calls

from gradserve_server.testing import ServerProcess, server_process

MODULE = str(HERE / "ops_named_threads.py")
SUM_OF_STAGE = "gradserve_stage_duration_seconds_sum"


def seconds_by_stage(server: ServerProcess) -> Figures:
    """Returns how long all calls so far were in each stage."""
    found: Figures = collections.defaultdict(float)
    with urllib.request.urlopen(server.metrics_url) as scraped:  # noqa: S310  # our own server
        text = scraped.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == SUM_OF_STAGE:
                found[f"stage {sample.labels['stage']}"] += sample.value
    return found


def cpu_seconds_by_thread(server: ServerProcess) -> Figures:
    """Returns how much CPU time each thread has used, in sum over those with one name."""
    found: Figures = collections.defaultdict(float)
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            nanoseconds = int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        found[f"thread {name}"] += nanoseconds / 1e9
    return found


def look(server: ServerProcess) -> Figures:
    """Returns both."""
    return {**seconds_by_stage(server), **cpu_seconds_by_thread(server)}


def measure_of(server: ServerProcess, call: Call, options: argparse.Namespace) -> Measure:
    """Returns what measures microseconds a call, by stage and by thread."""
    payload = request(SMALL)

    async def measure() -> Figures:
        before = look(server)
        figures = await figures_of_tasks(functools.partial(call, payload), options.callers, options.seconds)
        await asyncio.sleep(0.1)  # the last calls are told to the metrics after their answers
        after = look(server)
        return {name: 1e6 * (value - before.get(name, 0.0)) / figures["calls"] for name, value in after.items()}

    return measure


async def run(server: ServerProcess, options: argparse.Namespace) -> Result:
    """Measures unary calls and the stream in turns."""
    async with server_calls(server.target) as calls:
        measures = {way: measure_of(server, call, options) for way, call in calls.items()}
        return await interleave(f"{options.callers} callers", measures, options.rounds, baseline="unary", metrics=())


def print_stages(result: Result) -> None:
    """Prints a table of the medians over the rounds; what is below a microsecond for all is left out."""
    print("| us a call | " + " | ".join(result.rounds) + " |")
    print("|---|" + "---|" * len(result.rounds))
    names = {name: None for rounds in result.rounds.values() for figures in rounds for name in figures}
    for name in sorted(names):
        medians = [statistics.median(figures.get(name, 0.0) for figures in rounds) for rounds in result.rounds.values()]
        if max(medians) >= 1:
            print(f"| {name} | " + " | ".join(f"{median:.0f}" for median in medians) + " |")


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each contender is called, each round")
    parser.add_argument("--callers", type=int, default=64, help="how many call at once")
    options = parser.parse_args()
    with server_process(MODULE) as server:
        time.sleep(1)  # until its threads have their names
        result = asyncio.run(run(server, options))
    print_stages(result)
    write_json(options.json, "stages", [result])


if __name__ == "__main__":
    main()
