"""``gradserve-server``: reads the settings, runs the server, and says in one message why it could not start."""

import multiprocessing
import os
import sys
import threading
import traceback

try:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from gradserve_server.config import load_settings
    from gradserve_server.logs import make_logger
    from gradserve_server.memory import keep_freed_memory
    from gradserve_server.ops import OpLoadError

    if sys.platform == "win32":  # there is no uvloop
        from asyncio import run
    else:
        from uvloop import run
except ModuleNotFoundError as error:  # the command comes with the client alone too
    raise SystemExit(f"gradserve-server: {error.name} is not installed; pip install 'gradserve[server]'") from error

BAD_START = 2
"""Exit status if the server could not start."""
_NOTHING_NAMED = (
    "gradserve-server: modules: wanted at least one path that ends in .py, or dotted name, "
    "or a model by --saved-model NAME=DIR or --keras-model NAME=FILE.keras"
)


def main(arguments: list[str] | None = None) -> int:
    """Runs ``gradserve-server`` with a command line; returns its exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's own chatter has no place among our log lines
    multiprocessing.set_start_method("spawn", force=True)  # a fork after TensorFlow has run hangs
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        settings = load_settings(arguments)
    except (ValueError, OSError) as error:
        return _refuse(_text_of(error), error, show_traceback=False)
    if not settings.has_ops:
        print(_NOTHING_NAMED, file=sys.stderr)
        return BAD_START
    from gradserve_server.app import LOAD_THREAD, serve  # noqa: PLC0415  # a wrong setting is told before gRPC is imported

    keep_freed_memory()
    status = 0
    try:
        run(serve(settings, make_logger(settings.log_level, settings.log_format)))
    except (OpLoadError, OSError, ValueError) as error:
        status = _refuse(str(error), error, show_traceback=settings.traceback)
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    if any(thread.name == LOAD_THREAD or not thread.daemon for thread in others):
        # Stopped while loading: the interpreter would abort if it ended while a thread is inside TensorFlow. Or an op has
        # threads of its own: the interpreter would wait for them.
        os._exit(status)
    return status


def _refuse(text: str, error: Exception, *, show_traceback: bool) -> int:
    if show_traceback:
        traceback.print_exception(error)
    print(f"gradserve-server: {text}", file=sys.stderr)
    return BAD_START


def _text_of(error: Exception) -> str:
    """Returns one line for a wrong setting: which, what was wrong, what was got."""
    if not isinstance(error, ValidationError):
        return str(error)
    return f"bad settings: {'; '.join(_fault_text(fault) for fault in error.errors())}"


def _fault_text(fault: ErrorDetails) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    rule = (
        "there is no such setting" if fault["type"] == "extra_forbidden" else fault["msg"].removeprefix("Value error, ")
    )
    return f"{name}: {rule}, got {fault['input']!r}"


if __name__ == "__main__":
    sys.exit(main())
