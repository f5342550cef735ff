"""Triton's own asyncio client; each caller is a task."""

import asyncio
import sys

import child
from clock import figures_of_tasks
from tritonclient.grpc import aio


def tensors(**arrays: child.Array) -> list:
    """Returns arrays as inputs of a call."""
    made = []
    for name, array in arrays.items():
        made.append(aio.InferInput(name, list(array.shape), "FP32"))
        made[-1].set_data_from_numpy(array)
    return made


async def connect() -> aio.InferenceServerClient:
    """Returns a client, which belongs to the event loop that is running."""
    return aio.InferenceServerClient(f"127.0.0.1:{sys.argv[1]}")


def run(x: child.Array, dy: child.Array, callers: int, seconds: float) -> "dict[str, float]":
    """Runs one round."""
    inputs = tensors(x=x, dy=dy)
    return loop.run_until_complete(figures_of_tasks(lambda: client.infer("op", inputs), callers, seconds))


loop = asyncio.new_event_loop()
client = loop.run_until_complete(connect())
child.serve(run)
