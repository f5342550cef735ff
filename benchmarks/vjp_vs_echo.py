"""One small VJP by the blocking client, encoded and decoded by it, against a bare echo of the same bytes.

It is what a user sees of one call; ``against_echo.py`` leaves the client's own work out.
"""

import asyncio
from collections.abc import Callable

import grpc
import numpy as np
from clock import Figures, figures_of_threads
from report import parser_of, print_table, write_json
from rounds import Measure, interleave
from servers import ECHO_PATH, OP, OPS, echo_server, request

from gradserve import Client
from gradserve_server.testing import server_process

SHAPE = (1, 3)


def measure_of(call: Callable[[], object], seconds: float) -> Measure:
    """Returns what measures one caller that blocks."""

    async def measure() -> Figures:
        return await asyncio.to_thread(figures_of_threads, [call], seconds)

    return measure


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each is called, each round")
    options = parser.parse_args()
    x, dy = {"x": np.array([[0.1, 0.2, 0.3]], np.float32)}, {"output": np.ones(SHAPE, np.float32)}
    payload = request(SHAPE)
    with (
        server_process(str(OPS)) as server,
        echo_server() as (echo_target, _),
        Client(server.target) as client,
        grpc.insecure_channel(echo_target) as channel,
    ):
        echo: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ECHO_PATH)
        measures = {
            "client": measure_of(lambda: client.vjp(OP, x, dy), options.seconds),
            "echo": measure_of(lambda: echo(payload), options.seconds),
        }
        result = asyncio.run(
            interleave("12 B by the client", measures, options.rounds, baseline="echo", metrics=("p50_us",))
        )
    print_table([result])
    write_json(options.json, "vjp_vs_echo", [result])


if __name__ == "__main__":
    main()
