"""Random calls of the ops of ``ops_of_rows``: good, bad, cancelled and late ones, of all shapes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from tests.support.ops_of_rows import CLASSES

from gradserve import aio
from gradserve.errors import GradserveError, InvalidRequest, OpContractError
from gradserve.results import ForwardResult, VjpResult
from gradserve.tensors import Array

SHAPES = ((), (1,), (3,), (8,), (13,), (2, 2), (1, 5), (4, 7), (2, 3, 4), (33, 17))
SHARES = {"weigh": 0.35, "log": 0.2, "layer": 0.3, "scale": 0.15}
"""How many of the calls are of each op."""
Kind = Literal["good", "bad", "cancelled", "late"]
KINDS: dict[Kind, float] = {"good": 0.85, "bad": 0.05, "cancelled": 0.05, "late": 0.05}
"""How many of the calls are of each kind."""
_WEIGHTS = 0.25 * np.random.default_rng(0).standard_normal((2, 16, 8)).astype(np.float32)


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call to make."""

    kind: Kind
    """How it is meant to end."""
    op: str
    """Name of the op."""
    inputs: dict[str, Array]
    """Inputs by name."""
    output_gradient: Array | None
    """The output gradient, of rank 0 to leave it out; None for a forward call."""
    seconds: float
    """When it is cancelled, or its deadline."""
    refusal: type[GradserveError] | None = None
    """What it gets, if it is bad."""

    async def send(self, client: aio.Client, timeout: float = 300.0) -> dict[str, Array]:
        """Returns outputs and gradients by name."""
        if self.output_gradient is None:
            return _arrays(await client.forward(self.op, self.inputs, timeout=timeout))
        given = {"output": self.output_gradient} if self.output_gradient.ndim else None
        wanted = [name for name in self.inputs if name not in ("weight", "chosen")]
        return _arrays(await client.vjp(self.op, self.inputs, given, differentiate=wanted, timeout=timeout))

    def __str__(self) -> str:
        shapes = {name: array.shape for name, array in self.inputs.items()}
        return f"{self.kind} {'forward' if self.output_gradient is None else 'vjp'} of {self.op} at {shapes}"


def _arrays(result: ForwardResult) -> dict[str, Array]:
    gradients = result.input_gradients if isinstance(result, VjpResult) else {}
    named = {f"gradient of {name}": array for name, array in gradients.items() if array is not None}
    return {**result.outputs, **named}


def draw_calls(count: int, rng: np.random.Generator) -> list[Call]:
    """Draws so many calls, of all ops, kinds and shapes."""
    kinds = rng.choice(list(KINDS), count, p=list(KINDS.values()))
    ops = rng.choice(list(SHARES), count, p=list(SHARES.values()))
    calls = [_good_call(str(name), rng) for name in ops]
    for call, kind in zip(calls, kinds, strict=True):
        call.kind = kind
        if kind == "bad":
            spoilers = _SPOILERS[call.op]
            call.refusal = spoilers[int(rng.integers(len(spoilers)))](call)
    return calls


def _good_call(name: str, rng: np.random.Generator) -> Call:
    rows = int(rng.integers(1, 7))
    inputs: dict[str, Array]
    if name == "layer":
        inputs = {"x": _normal((rows, 16), rng), "weight": _WEIGHTS[int(rng.random() < 0.3)]}
        shape: tuple[int, ...] = (rows, 8)
    elif name == "scale":
        inputs = {"x": _normal((rows, 3), rng), "chosen": rng.integers(CLASSES, size=rows, dtype=np.int32)}
        shape = (rows, 3)
    else:
        shape = SHAPES[rng.integers(len(SHAPES))]
        inputs = {"x": _normal(shape, rng), "y": _normal(shape, rng)}
    if name == "log":
        inputs = {"x": np.asarray(np.exp(inputs["x"]))}
    dy = _normal(() if name in ("weigh", "log") and rng.random() < 0.2 else shape, rng)
    return Call(
        kind="good",
        op=name,
        inputs=inputs,
        output_gradient=dy if rng.random() < 0.6 else None,
        seconds=float(10.0 ** rng.uniform(-3.5, 0.0)),
    )


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return np.asarray(rng.standard_normal(shape), np.float32)


def _wrong_dtype(call: Call) -> type[GradserveError]:
    call.inputs["x"] = call.inputs["x"].astype(np.float64)
    return InvalidRequest


def _wrong_width(call: Call) -> type[GradserveError]:
    call.inputs["x"] = call.inputs["x"][:, 1:]
    return InvalidRequest


def _shapes_that_do_not_fit(call: Call) -> type[GradserveError]:
    call.inputs |= {"x": np.ones((5, 6), np.float32), "y": np.ones(4, np.float32)}
    return InvalidRequest


def _output_gradient_of_another_shape(call: Call) -> type[GradserveError]:
    call.output_gradient = np.ones((7, 7, 7), np.float32)
    return InvalidRequest


def _value_that_the_op_refuses(call: Call) -> type[GradserveError]:
    call.inputs["x"].reshape(-1)[-1] = -1.0
    return InvalidRequest


def _value_that_the_rule_refuses(call: Call) -> type[GradserveError]:
    call.output_gradient = np.full((1, *call.inputs["x"].shape), np.nan, np.float32)
    call.inputs["x"] = call.inputs["x"][None]
    return OpContractError


def _no_such_class(call: Call) -> type[GradserveError]:
    call.inputs["chosen"][-1] = CLASSES
    return InvalidRequest


_SPOILERS: dict[str, Sequence[Callable[[Call], type[GradserveError]]]] = {
    "weigh": (_wrong_dtype, _shapes_that_do_not_fit, _output_gradient_of_another_shape),
    "log": (_wrong_dtype, _value_that_the_op_refuses, _value_that_the_rule_refuses),
    "layer": (_wrong_dtype, _wrong_width, _output_gradient_of_another_shape),
    "scale": (_wrong_width, _no_such_class, _no_such_class),
}
"""For each op, what makes a good call bad; each returns the error that the call then gets."""
