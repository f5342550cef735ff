"""Logs: structured lines on standard error, one for each call and one for each event in the server's life."""

import asyncio
import collections
import contextlib
import datetime as dt
import functools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TextIO, cast

import orjson
import structlog

from gradserve.errors import Code
from gradserve.messages import SERVICE
from gradserve_server.telemetry import Call, Ended

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]
Logger = structlog.typing.FilteringBoundLogger
_FAULTS_OF_THE_SERVER = (Code.INTERNAL, Code.UNKNOWN, Code.FAILED_PRECONDITION)


def make_logger(level: LogLevel, log_format: LogFormat, stream: TextIO = sys.stderr) -> Logger:
    """Returns a logger that writes lines at or above a level.

    Args:
        level: Least level that is written.
        log_format: "json" for one JSON object a line, "console" for people.
        stream: Where lines go.
    """
    as_text = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    as_json = structlog.processors.JSONRenderer(serializer=_to_json)
    processors = [
        structlog.processors.add_log_level,
        _add_timestamp,
        *([structlog.processors.format_exc_info, _Each(as_json)] if log_format == "json" else [_Each(as_text)]),
    ]
    logger: Logger = structlog.wrap_logger(
        structlog.WriteLogger(cast("TextIO", _Lines(stream))),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    return logger


def _to_json(event: Mapping[str, Any], default: Callable[[Any], Any]) -> str:
    try:
        return orjson.dumps(event, default=default).decode()
    except TypeError:  # a text with half a surrogate pair, or an integer of more than 64 bits
        return json.dumps(event, default=default)


def _add_timestamp(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Adds the time, as structlog's ``TimeStamper(fmt="iso")`` does, which takes a third of the time of a whole line."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    event["timestamp"] = f"{_date_and_time(seconds)}.{nanoseconds // 1000:06d}Z"
    return event


@functools.lru_cache(1)
def _date_and_time(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


class _Each:
    """Renders an event; one with ``calls`` as a line for each, since all else takes several times as long as that."""

    def __init__(self, render: Callable[[object, str, structlog.typing.EventDict], str | bytes]) -> None:
        self._render = render

    def __call__(self, logger: object, name: str, event: structlog.typing.EventDict) -> str:
        calls = event.pop("calls", None)
        events = [event] if calls is None else [{**event, **call} for call in calls]
        return "\n".join([str(self._render(logger, name, each)) for each in events])


class _Lines:
    """A stream that takes the lines of one turn of the event loop together; other threads' lines go at once.

    Its reader may go away: lines are then lost, but no call and no stop fails for that.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: collections.deque[str] = collections.deque()
        self._due: asyncio.AbstractEventLoop | None = None
        """The event loop that writes at its next turn. It may be over before that: whoever comes next then writes."""

    def write(self, text: str) -> None:
        self._waiting.append(text)

    def flush(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write()
            return
        if self._due is not loop:
            self._due = loop
            loop.call_soon(self._write)

    def _write(self) -> None:
        self._due = None
        lines = []
        with contextlib.suppress(IndexError):  # none is left; another thread may have taken some
            while True:
                lines.append(self._waiting.popleft())
        with contextlib.suppress(OSError, ValueError):
            self._stream.write("".join(lines))
            self._stream.flush()


class AccessLog:
    """A ``CallObserver`` that writes one line a call: never a tensor's content, never a name that a caller made up."""

    def __init__(self, logger: Logger) -> None:
        """Takes the logger."""
        self._logger: Logger = logger.bind()  # else its class is made ready anew for each line

    def calls_ended(self, ended: Sequence[Ended]) -> None:
        """Writes the lines: a fault of the server as an error, with its traceback; all else as information."""
        usual: list[dict[str, Any]] = []
        for call, cause in ended:
            if cause is not None or call.code in _FAULTS_OF_THE_SERVER:
                self._logger.error("request", **_fields(call), exc_info=cause)
            elif call.service == SERVICE:
                usual.append(_fields(call))
            else:  # probes ask for health all the time
                self._logger.debug("request", **_fields(call))
        if usual:
            self._logger.info("request", calls=usual)


def _fields(call: Call) -> dict[str, Any]:
    details = {"error": call.error, "reason": call.reason} if call.error else {}
    return {
        "request_id": call.request_id[:128],
        "method": call.method,
        "op": call.op,
        "version": call.version,
        "code": call.code.name,
        "milliseconds": round(call.seconds * 1e3, 3),
        "stages": {name: round(seconds * 1e3, 3) for name, seconds in call.stages.items()},
        "request_bytes": call.request_bytes,
        "response_bytes": call.response_bytes,
        **details,
    }
