"""The loop of every peer's client: a command on standard input is one round of a workload, its answer a line of figures.

command {"shape": [1, 16], "callers": 64, "seconds": 2.0} -> {"p50_us": ..., "calls_per_second": ..., ...} or {"refused": why}
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np
from clock import figures_of_threads

START_SECONDS = 120
"""How long the peer's server may take until it answers."""
Array = np.ndarray
Round = Callable[[Array, Array, int, float], "dict[str, float]"]
"""Runs one round, with x, dy, the number of callers and the seconds for which they call; returns its figures."""


def serve(run: Round) -> None:
    """Waits for the peer's server, says so by an empty line of figures, and answers commands until there are no more."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    _wait(run)
    print("{}", file=answers)
    for line in sys.stdin:
        print(json.dumps(_answer(run, json.loads(line))), file=answers)


def round_of_threads(make_call: Callable[[Array, Array], Callable[[], object]]) -> Round:
    """Returns the round of a client that blocks: each caller is a thread with a call, and a connection, of its own."""
    keep = functools.lru_cache(maxsize=128)

    @keep
    def call_of(_: int, shape: tuple) -> Callable[[], object]:
        return make_call(*arrays(shape))

    def run(x: Array, _: Array, callers: int, seconds: float) -> "dict[str, float]":
        return figures_of_threads([call_of(number, x.shape) for number in range(callers)], seconds)

    return run


@functools.lru_cache(maxsize=4)
def arrays(shape: tuple) -> "tuple[Array, Array]":
    """Returns random numbers for x, and ones for dy."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return x, np.ones_like(x)


def _wait(run: Round) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            run(*arrays((1, 3)), 1, 0.0)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.25)
        else:
            return


def _answer(run: Round, command: dict) -> dict:
    x, dy = arrays(tuple(command["shape"]))
    try:
        return run(x, dy, command["callers"], command["seconds"])
    except Exception as error:  # whatever a peer's client raises
        return {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
