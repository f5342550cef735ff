"""What child processes run in tests; imports no framework, so that they start fast."""

import asyncio
import os
import sys

from gradserve import Client
from gradserve.aio import Client as AsyncClient
from gradserve.errors import Unavailable


def square(client: Client, x: float) -> tuple[float, float]:
    """Returns the square of a number and its slope."""
    result = client.vjp("square_with_grad", x, timeout=30)
    return float(result.output), float(result.gradient)


def square_async(client: AsyncClient, x: float) -> tuple[float, float]:
    """Returns the same by the asyncio client, in an event loop of its own."""

    async def call() -> tuple[float, float]:
        async with client:
            result = await client.vjp("square_with_grad", x, timeout=30)
            return float(result.output), float(result.gradient)

    return asyncio.run(call())


def fork_and_call(target: str) -> None:
    """Calls, forks, calls in the child and then again in the parent, with one client; prints what came."""
    client = Client(target)
    print("before", square(client, 3.0), flush=True)
    child = os.fork()
    if child == 0:
        print("child", square(client, 4.0), flush=True)
        os._exit(0)
    print("status", os.waitpid(child, 0)[1], flush=True)
    print("after", square(client, 5.0), flush=True)


def fork_and_call_async(target: str) -> None:
    """Calls by the asyncio client, forks, and calls in the child and then again in the parent; prints what came."""
    print("before", square_async(AsyncClient(target), 3.0), flush=True)
    child = os.fork()
    if child == 0:
        try:
            print("child", square_async(AsyncClient(target), 4.0), flush=True)
        except Unavailable as error:
            print("child", error.reason, flush=True)
        os._exit(0)
    print("status", os.waitpid(child, 0)[1], flush=True)
    print("after", square_async(AsyncClient(target), 5.0), flush=True)


if __name__ == "__main__":
    {"blocking": fork_and_call, "asyncio": fork_and_call_async}[sys.argv[1]](sys.argv[2])
