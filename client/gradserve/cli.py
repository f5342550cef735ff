"""``gradserve``: calls a server from the command line.

    gradserve ops                                           what the server hosts
    gradserve vjp square_with_grad x=3.0 dy=2.0             outputs and gradients
    gradserve forward multiply_with_grad x=@a.npy y=[1,2]   outputs

Exit status: 0 good, 1 the call failed or the server is not serving, 2 bad usage.
"""

import argparse
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from gradserve import command_line
from gradserve.client import Client
from gradserve.errors import GradserveError
from gradserve.printing import Printer
from gradserve.results import ForwardResult, VjpResult


def main(arguments: list[str] | None = None) -> int:
    """Runs ``gradserve`` with a command line; returns its exit status."""
    options = _parse(arguments)
    try:
        with Client(options.target, timeout=options.timeout) as client:
            return int(options.run(client, options))
    except GradserveError as error:
        print(f"gradserve: {error.code.name}: {error}{_hint(error)} [{_labels(error)}]", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"gradserve: {error}", file=sys.stderr)
        return 2


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses a command line; tensors may stand on both sides of options, which argparse alone does not take."""
    parser = _parser()
    options, left_over = parser.parse_known_args(arguments)
    unknown = [argument for argument in left_over if argument.startswith("-") or "tensors" not in options]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if left_over:
        options.tensors += left_over
    return options


def _hint(error: GradserveError) -> str:
    is_name = error.reason == "BAD_INPUT_NAMES"
    return "; an output gradient is dy=VALUE, or d:OUTPUT=VALUE where there are several" if is_name else ""


def _labels(error: GradserveError) -> str:
    return error.reason if error.request_id is None else f"{error.reason}, request {error.request_id}"


def run_ops(client: Client, options: argparse.Namespace) -> int:
    """Lists the ops of a server, or describes those that are named."""
    infos = [client.op(name) for name in options.names] if options.names else client.ops()
    Printer(as_json=options.json).ops(infos, detailed=bool(options.names))
    return 0


def run_forward(client: Client, options: argparse.Namespace) -> int:
    """Evaluates an op."""
    info = client.op(options.op, version=options.version)
    inputs, output_gradients = command_line.read_tensors(options.tensors, info, options.signature)
    if output_gradients:
        raise ValueError(f"output gradient of {', '.join(output_gradients)}: forward takes none; use gradserve vjp")
    result = client.forward(options.op, inputs, version=options.version, signature=options.signature)
    return _show(result, options)


def run_vjp(client: Client, options: argparse.Namespace) -> int:
    """Evaluates an op and pulls output gradients back through it."""
    info = client.op(options.op, version=options.version)
    inputs, output_gradients = command_line.read_tensors(options.tensors, info, options.signature)
    result = client.vjp(
        options.op,
        inputs,
        output_gradients or None,
        differentiate=options.differentiate,
        unconnected=options.unconnected,
        variable_gradients=options.variables,
        version=options.version,
        signature=options.signature,
    )
    return _show(result, options)


def run_health(client: Client, options: argparse.Namespace) -> int:
    """Says whether a server, or one of its services, is serving."""
    status = client.health(options.service)
    Printer(as_json=options.json).health(options.service, status)
    return 0 if status == "SERVING" else 1


def _show(result: ForwardResult | VjpResult, options: argparse.Namespace) -> int:
    Printer(as_json=options.json).result(result)
    if options.output is not None:
        for path in command_line.save_result(result, options.output):
            print(f"wrote {path}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gradserve", description="Calls a Gradserve server.")
    parser.add_argument("--version", action="version", version=f"gradserve {version('gradserve')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    ops = _command(commands, "ops", run_ops, "list the ops of a server, or describe some")
    ops.add_argument("names", nargs="*", metavar="OP", help="ops to describe; all are listed if none is named")
    forward = _command(commands, "forward", run_forward, "evaluate an op")
    _add_call(forward, "inputs, such as x=[[1,2]] or x=@file.npy")
    vjp = _command(commands, "vjp", run_vjp, "evaluate an op and pull output gradients back through it")
    _add_call(vjp, "inputs, such as x=[[1,2]] or x=@file.npy, and output gradients, such as dy=1 or d:output=@dy.npy")
    vjp.add_argument("--differentiate", action="append", metavar="INPUT", help="input whose gradient is wanted; repeat")
    vjp.add_argument("--unconnected", choices=("none", "zero"), default="none", help="what a missing gradient becomes")
    vjp.add_argument("--variables", action="store_true", help="ask for the gradients of the op's variables too")
    health = _command(commands, "health", run_health, "say whether a server is serving")
    health.add_argument("service", nargs="?", default="", help="full name of a service; the whole server if absent")
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=(run.__doc__ or "").strip())
    parser.set_defaults(run=run)
    parser.add_argument("--target", default="localhost:50051", metavar="HOST:PORT", help="server (%(default)s)")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="deadline (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _add_call(parser: argparse.ArgumentParser, tensors: str) -> None:
    parser.add_argument("op", metavar="OP", help="name of the op")
    parser.add_argument("tensors", nargs="*", metavar="NAME=VALUE", help=tensors)
    parser.add_argument("--version", type=int, default=0, help="version of the op; the newest if absent")
    parser.add_argument("--signature", default="", help="signature key; the one that fits if absent")
    parser.add_argument("--output", metavar="DIR", help="folder to write each output and gradient to, as .npy")


if __name__ == "__main__":
    sys.exit(main())
