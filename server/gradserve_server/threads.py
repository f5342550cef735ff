"""Threads beside the event loop for what takes seconds or more."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_daemon_thread(function: Callable[[], Result], *, name: str) -> Result:
    """Runs a function that may take minutes beside the event loop; unlike ``to_thread``, an exit does not wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not future.cancelled():
            set_outcome()

    def run() -> None:
        try:
            outcome = functools.partial(future.set_result, function())
        except Exception as error:  # it goes to whoever awaits this
            outcome = functools.partial(future.set_exception, error)
        except (
            BaseException
        ) as error:  # KeyboardInterrupt and the like would end the event loop that they are handed to
            outcome = functools.partial(future.set_exception, RuntimeError(f"{name} raised {type(error).__name__}"))
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped meanwhile
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
