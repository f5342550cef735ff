"""``gradserve``: calls a server from the command line.

    gradserve ops                                           what the server hosts
    gradserve vjp square_with_grad x=3.0 dy=2.0             outputs and gradients
    gradserve forward multiply_with_grad x=@a.npy y=[1,2]   outputs
    gradserve jvp square_with_grad x=3.0 v=1.0              outputs and their tangents; hvp and jacobian likewise
    gradserve check --plot spike.png spike                  whether a gradient is the derivative, and a picture of it

Exit status: 0 good, 1 the call failed, the server is not serving or a gradient is wrong, 2 bad usage.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from gradserve import command_line
from gradserve.client import Client
from gradserve.errors import GradserveError, OpContractError
from gradserve.gradient_check import GradientCheck
from gradserve.op_info import OpInfo
from gradserve.printing import Printer
from gradserve.results import ForwardResult


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
    options, left_over = parser.parse_known_args(_join_line(sys.argv[1:] if arguments is None else arguments))
    unknown = [argument for argument in left_over if argument.startswith("-") or "tensors" not in options]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if left_over:
        options.tensors += left_over
    return options


def _join_line(arguments: list[str]) -> list[str]:
    """Joins ``--line`` to what follows, such as "-3:3", which argparse would take for an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--line":
            joined[-1] = f"--line={argument}"
        else:
            joined.append(argument)
    return joined


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
    tensors = _read(client, options, takes=())
    return _show(client.forward(options.op, tensors.inputs, **_common(options)), options)


def run_vjp(client: Client, options: argparse.Namespace) -> int:
    """Evaluates an op and pulls output gradients back through it."""
    tensors = _read(client, options, takes=("output_gradients",))
    result = client.vjp(
        options.op,
        tensors.inputs,
        tensors.output_gradients or None,
        differentiate=options.differentiate,
        unconnected=options.unconnected,
        variable_gradients=options.variables,
        stacked=options.stacked,
        **_common(options),
    )
    return _show(result, options)


def run_jvp(client: Client, options: argparse.Namespace) -> int:
    """Evaluates an op and pushes tangents of its inputs forward through it."""
    tensors = _read(client, options, takes=("vectors",))
    result = client.jvp(
        options.op, tensors.inputs, tensors.vectors, unconnected=options.unconnected, **_common(options)
    )
    return _show(result, options)


def run_hvp(client: Client, options: argparse.Namespace) -> int:
    """Evaluates an op, and its second derivative times a vector."""
    tensors = _read(client, options, takes=("output_gradients", "vectors"))
    result = client.hvp(
        options.op,
        tensors.inputs,
        tensors.vectors,
        tensors.output_gradients or None,
        unconnected=options.unconnected,
        **_common(options),
    )
    return _show(result, options)


def run_jacobian(client: Client, options: argparse.Namespace) -> int:
    """Evaluates an op and its Jacobians."""
    tensors = _read(client, options, takes=())
    result = client.jacobian(
        options.op,
        tensors.inputs,
        differentiate=options.differentiate,
        unconnected=options.unconnected,
        **_common(options),
    )
    return _show(result, options)


def run_check(client: Client, options: argparse.Namespace) -> int:
    """Checks the gradient of an op, or of every op that has one, against forward values."""
    checks = {}
    if options.op is None and options.plot is not None:
        raise ValueError("--plot: name the op to draw")
    if options.op is None:
        for info in client.ops():
            for key in info.signatures:
                checks.update(_check_if_possible(client, info, key, options))
    else:
        info = client.op(options.op, version=options.version)
        checks = _check(client, info, options.signature, options)
    Printer(as_json=options.json).checks(checks)
    if options.plot is not None:
        _plot(checks, options)
    return 1 if any(check.verdict == "fail" for check in checks.values()) else 0


def _check_if_possible(client: Client, info: OpInfo, key: str, options: argparse.Namespace) -> dict[str, GradientCheck]:
    try:
        return _check(client, info, key, options)
    except OpContractError as error:  # it has no gradient, or one that cannot be checked; the others have
        found = GradientCheck(verdict="unchecked", text=str(error), findings=[], points=0, signature=key)
        return {_title(info, key): found}


def _title(info: OpInfo, key: str) -> str:
    return f"{info.name} version {info.version}, {key}"


def _check(client: Client, info: OpInfo, key: str, options: argparse.Namespace) -> dict[str, GradientCheck]:
    tensors = command_line.read_tensors(options.tensors, info, key, seeded=options.seed is not None)
    _refuse_others(tensors, "check", takes=())
    line = None if options.plot is None else command_line.read_line(options.line)
    found = client.check_gradient(
        info.name,
        tensors.inputs or None,
        points=options.points,
        directions=options.directions,
        max_elements=options.max_elements,
        max_seconds=options.max_seconds,
        draw_seed=options.draw_seed,
        line=line,
        seed=options.seed,
        version=info.version,
        signature=key,
    )
    return {_title(info, found.signature): found}


def _plot(checks: Mapping[str, GradientCheck], options: argparse.Namespace) -> None:
    from gradserve.plotting import plot_profile  # noqa: PLC0415  # needs matplotlib, which few callers have

    ((name, check),) = checks.items()
    plot_profile(check, name, options.plot)
    print(f"wrote {options.plot}", file=sys.stderr)


def _read(client: Client, options: argparse.Namespace, *, takes: Sequence[str]) -> command_line.Arguments:
    """Reads the tensors of a call that takes these kinds beside inputs."""
    info = client.op(options.op, version=options.version)
    tensors = command_line.read_tensors(options.tensors, info, options.signature, seeded=options.seed is not None)
    _refuse_others(tensors, options.command, takes=takes)
    return tensors


def _refuse_others(tensors: command_line.Arguments, command: str, *, takes: Sequence[str]) -> None:
    for kind, remedy in (("output_gradients", "gradserve vjp"), ("vectors", "gradserve jvp or hvp")):
        given = getattr(tensors, kind)
        if given and kind not in takes:
            what = kind.removesuffix("s").replace("_", " ")
            raise ValueError(f"{what} of {', '.join(given)}: {command} takes none; use {remedy}")


def _common(options: argparse.Namespace) -> dict[str, Any]:
    return {"seed": options.seed, "version": options.version, "signature": options.signature}


def run_health(client: Client, options: argparse.Namespace) -> int:
    """Says whether a server, or one of its services, is serving."""
    status = client.health(options.service)
    Printer(as_json=options.json).health(options.service, status)
    return 0 if status == "SERVING" else 1


def _show(result: ForwardResult, options: argparse.Namespace) -> int:
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
    vjp.add_argument("--variables", action="store_true", help="ask for the gradients of the op's variables too")
    vjp.add_argument(
        "--stacked", action="store_true", help="output gradients have a leading axis: pull back each of them"
    )
    jvp = _command(commands, "jvp", run_jvp, "evaluate an op and push tangents forward through it")
    _add_call(jvp, "inputs, and tangents, such as v=1 or v:x=@tangent.npy")
    hvp = _command(commands, "hvp", run_hvp, "evaluate an op and its second derivative times a vector")
    _add_call(hvp, "inputs, vectors, such as v=1 or v:x=@vector.npy, and output gradients")
    jacobian = _command(commands, "jacobian", run_jacobian, "evaluate an op and its Jacobians")
    _add_call(jacobian, "inputs, such as x=[[1,2]] or x=@file.npy")
    for command in (vjp, jacobian):
        command.add_argument(
            "--differentiate", action="append", metavar="INPUT", help="input to differentiate by; repeat"
        )
    for command in (vjp, jvp, hvp, jacobian):
        command.add_argument(
            "--unconnected", choices=("none", "zero"), default="none", help="what stands for no gradient"
        )
    _add_check(_command(commands, "check", run_check, "check gradients against forward values"))
    health = _command(commands, "health", run_health, "say whether a server is serving")
    health.add_argument("service", nargs="?", default="", help="full name of a service; the whole server if absent")
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=(run.__doc__ or "").strip())
    parser.set_defaults(run=run, command=name)
    parser.add_argument("--target", default="localhost:50051", metavar="HOST:PORT", help="server (%(default)s)")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="deadline (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", metavar="OP", nargs="?", help="name of the op; all ops if absent")
    _add_tensors(parser, "inputs at which to check; drawn if absent")
    parser.add_argument("--points", type=int, default=0, help="how many points to draw")
    parser.add_argument("--directions", type=int, default=0, help="how many random directions to try at each point")
    parser.add_argument("--max-elements", type=int, default=0, help="largest input to check element by element")
    parser.add_argument("--max-seconds", type=float, default=0.0, help="how long to go on for each op")
    parser.add_argument("--draw-seed", type=int, default=0, help="seed of what is drawn")
    parser.add_argument(
        "--plot", metavar="FILE", help="picture of the op and its derivatives along a line, .png or .svg"
    )
    parser.add_argument(
        "--line", default="-3:3", metavar="[INPUT=]LOW:HIGH[:POINTS]", help="that line (%(default)s of the first input)"
    )


def _add_call(parser: argparse.ArgumentParser, tensors: str) -> None:
    parser.add_argument("op", metavar="OP", help="name of the op")
    _add_tensors(parser, tensors)
    parser.add_argument("--output", metavar="DIR", help="folder to write each output and gradient to, as .npy")


def _add_tensors(parser: argparse.ArgumentParser, tensors: str) -> None:
    parser.add_argument("tensors", nargs="*", metavar="NAME=VALUE", help=tensors)
    parser.add_argument("--seed", type=int, help="seed, for ops that take one")
    parser.add_argument("--version", type=int, default=0, help="version of the op; the newest if absent")
    parser.add_argument("--signature", default="", help="signature key; the one that fits if absent")


if __name__ == "__main__":
    sys.exit(main())
