"""Logs: structured lines on standard error, one for each call and one for each event in the server's life."""

import contextlib
import sys
from typing import Literal, TextIO, cast

import structlog

from gradserve.errors import Code
from gradserve.messages import SERVICE
from gradserve_server.telemetry import Call

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
    as_json = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    processors = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *(as_json if log_format == "json" else [as_text]),
    ]
    logger: Logger = structlog.wrap_logger(
        structlog.WriteLogger(cast("TextIO", _Unbreakable(stream))),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    return logger


class _Unbreakable:
    """A stream whose reader may go away: lines are then lost, but no call and no stop fails for that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class AccessLog:
    """A ``CallObserver`` that writes one line a call: never a tensor's content, never a name that a caller made up."""

    def __init__(self, logger: Logger) -> None:
        """Takes the logger."""
        self._logger: Logger = logger.bind()  # else its class is made ready anew for each line

    def call_ended(self, call: Call, cause: Exception | None) -> None:
        """Writes the line: a fault of the server as an error, with its traceback; all else as information."""
        usual = (
            self._logger.info if call.service == SERVICE else self._logger.debug
        )  # probes ask for health all the time
        write = self._logger.error if call.code in _FAULTS_OF_THE_SERVER else usual
        details = {"error": call.error, "reason": call.reason} if call.error else {}
        write(
            "request",
            request_id=call.request_id[:128],
            method=call.method,
            op=call.op,
            version=call.version,
            code=call.code.name,
            milliseconds=round(call.seconds * 1e3, 3),
            stages={name: round(seconds * 1e3, 3) for name, seconds in call.stages.items()},
            request_bytes=call.request_bytes,
            response_bytes=call.response_bytes,
            exc_info=cause,
            **details,
        )
