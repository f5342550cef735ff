"""Sampling: runs an op around one point, along directions in one of its inputs, in as few forward calls as it takes."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gradserve.tensors import Array
from gradserve_server.checking.differences import Samples, Scheme, from_reals, granularity, reals, roundoff
from gradserve_server.ops import Op

Vjp = Callable[[Sequence[Array], Sequence[Array]], list[Array | None]]
"""Takes inputs and output gradients; returns a gradient per input, None where there is none."""


class Budget:
    """How many seconds a check may take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts now, by a clock that counts seconds."""
        self._clock = clock
        self._end = clock() + seconds

    def spent(self) -> bool:
        """Whether the time is over."""
        return self._clock() >= self._end


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An op at one point: what it returned, and what its rule said for some random output gradients."""

    inputs: Sequence[Array]
    """The inputs."""
    outputs: Array
    """Differentiable outputs as one vector of reals."""
    output_gradients: Sequence[Sequence[Array]]
    """For each draw: an output gradient for each differentiable output."""
    weights: Array
    """The same as reals, shape (draws, outputs)."""
    gradients: Sequence[Sequence[Array | None]]
    """For each draw: the rule's gradient for each input."""
    units: Array
    """Unit roundoff of each output, shape (outputs,)."""
    numbers: Sequence[int]
    """How many reals each differentiable output has."""
    alike: Sequence["Point"] = ()
    """The same point evaluated otherwise; its gradients differ by rounding alone."""

    def gradient(self, position: int) -> Array:
        """Returns the rule's gradient for an input as reals, shape (draws, elements); zeros where there is none."""
        rows = [draw[position] for draw in self.gradients]
        size = reals(self.inputs[position]).size
        return np.stack([np.zeros(size) if row is None else reals(row) for row in rows])

    def rounding(self, position: int) -> Array:
        """Returns what rounding may do to the rule's gradient, as ``gradient``; zeros if that is not known."""
        gradient = self.gradient(position)
        apart = [np.abs(gradient - other.gradient(position)) for other in self.alike]
        return np.asarray(np.max(apart, axis=0)) if apart else np.zeros_like(gradient)

    def is_finite(self) -> bool:
        """Whether all outputs and gradients are."""
        gradients = [row for draw in self.gradients for row in draw if row is not None]
        return bool(np.isfinite(self.outputs).all() and all(np.isfinite(reals(row)).all() for row in gradients))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Direction:
    """A direction in one input."""

    position: int
    """Which input."""
    vector: Array
    """The direction as reals, as long as the input is large."""
    lane: int = -1
    """The one element that it moves; -1 if it moves several."""


def float_outputs(op: Op, outputs: Sequence[Array]) -> list[Array]:
    """Returns the outputs that take an output gradient."""
    specs = op.signature.outputs.values()
    return [output for output, spec in zip(outputs, specs, strict=True) if spec.differentiable]


def as_reals(arrays: Sequence[Array]) -> Array:
    """Returns arrays as one vector of reals."""
    return np.concatenate([reals(array) for array in arrays]) if arrays else np.zeros(0)


def rule_of(op: Op) -> Vjp:
    """Returns the op's own rule, with a gradient or None for each input."""

    def rule(inputs: Sequence[Array], output_gradients: Sequence[Array]) -> list[Array | None]:
        _, gradients = op.program.vjp(inputs, output_gradients)
        remaining = iter(gradients)
        found = [next(remaining) if spec.differentiable else None for spec in op.signature.inputs.values()]
        for gradient, array in zip(found, inputs, strict=True):
            if gradient is not None and gradient.shape != array.shape:
                raise ValueError(
                    f"a gradient has another shape than its input: wanted {array.shape}, got {gradient.shape}"
                )
        return found

    return rule


def evaluate(op: Op, inputs: Sequence[Array], draws: int, rng: np.random.Generator, single: int = 0) -> Point:
    """Runs an op forward, and backward for random output gradients.

    Args:
        op: The op.
        inputs: Its inputs.
        draws: How many output gradients are drawn, N(0, 1) in each part.
        rng: Draws them.
        single: How many more have one element that is not zero, if an output is of 16 bits: one output's rounding hides
            less than that of all together.

    Raises:
        Exception: Whatever the op raises there.
    """
    outputs = float_outputs(op, op.program.forward(inputs))
    drawn = [[_normal_like(output, rng) for output in outputs] for _ in range(draws)]
    if single and max(roundoff(output.dtype) for output in outputs) > 1e-5:
        drawn += _single(outputs, single, rng)
    return _point(op, inputs, outputs, drawn)


def evaluate_for(op: Op, inputs: Sequence[Array], output_gradients: Sequence[Sequence[Array]]) -> Point:
    """Runs an op forward, and backward for given output gradients; as ``evaluate`` else."""
    return _point(op, inputs, float_outputs(op, op.program.forward(inputs)), output_gradients)


def _point(
    op: Op, inputs: Sequence[Array], outputs: Sequence[Array], output_gradients: Sequence[Sequence[Array]]
) -> Point:
    rule = rule_of(op)
    sizes = [reals(output).size for output in outputs]
    return Point(
        inputs=inputs,
        outputs=as_reals(outputs),
        output_gradients=output_gradients,
        weights=np.stack([as_reals(draw) for draw in output_gradients]),
        gradients=[rule(inputs, draw) for draw in output_gradients],
        units=np.repeat([roundoff(output.dtype) for output in outputs], sizes),
        numbers=sizes,
    )


def _single(outputs: Sequence[Array], most: int, rng: np.random.Generator) -> list[list[Array]]:
    """Returns output gradients with one element of one; of each output element, or of a choice of ``most``."""
    blanks = [np.zeros(reals(output).size) for output in outputs]
    places = [(number, at) for number, blank in enumerate(blanks) for at in range(len(blank))]
    drawn = []
    for number, at in (places[i] for i in rng.permutation(len(places))[:most]):
        chosen = [blank.copy() for blank in blanks]
        chosen[number][at] = 1.0
        drawn.append([from_reals(row, output) for row, output in zip(chosen, outputs, strict=True)])
    return drawn


def _normal_like(output: Array, rng: np.random.Generator) -> Array:
    return from_reals(rng.standard_normal(reals(output).size), output)


class Sampler:
    """Samples an op around one point."""

    def __init__(self, op: Op, point: Point, budget: Budget, scheme: Scheme) -> None:
        """Takes the op, the point, the time that is left, and how lines are measured."""
        self._op = op
        self.point = point
        self._budget = budget
        self.scheme = scheme

    def sample(self, directions: Sequence[Direction], steps: Array) -> Iterator[Samples | None]:
        """Yields the samples for each direction; None where values are not finite, or the time is over.

        Args:
            directions: Directions, all in the same input.
            steps: The steps t to take, shape (n,): t and -t by turns, the largest first.
        """
        if directions and all(self.moves_alone(direction) for direction in directions):
            yield from self._sample_lanes(directions, steps)
            return
        for direction in directions:
            moves, values = self._walk(direction.position, direction.vector, steps)
            along = moves @ direction.vector / (direction.vector @ direction.vector)
            pulls = self.point.gradient(direction.position) @ moves.T
            yield self._samples(along, values, self.point.outputs, pulls, self.point.weights, self.point.units)

    def moves_alone(self, direction: Direction) -> bool:
        """Whether the elements of this input each have outputs of their own, so that one call moves all of them."""
        array = self.point.inputs[direction.position]
        alone = self._op.elementwise and direction.lane >= 0 and array.dtype.kind != "c"
        return alone and set(self.point.numbers) == {array.size}

    def _sample_lanes(self, directions: Sequence[Direction], steps: Array) -> Iterator[Samples | None]:
        """Moves all elements in each call."""
        position = directions[0].position
        together = np.sum([direction.vector for direction in directions], axis=0)
        moves, values = self._walk(position, together, steps)
        size, gradient = together.size, self.point.gradient(position)
        for direction in directions:
            own = slice(direction.lane, None, size)
            yield self._samples(
                moves[:, direction.lane] / together[direction.lane],
                values[:, own],
                self.point.outputs[own],
                gradient[:, [direction.lane]] @ moves[:, [direction.lane]].T,
                self.point.weights[:, own],
                self.point.units[own],
            )

    def _walk(self, position: int, vector: Array, steps: Array) -> tuple[Array, Array]:
        """Returns the input's moves, shape (n, elements), and the outputs, shape (n, outputs), NaN where there is none."""
        array = self.point.inputs[position]
        start = reals(array)
        moved = [from_reals(start + step * vector, array) for step in steps]
        values = np.full((len(moved), self.point.outputs.size), np.nan)
        for row, place in zip(values, moved, strict=True):
            if self._budget.spent():
                break
            row[:] = self._forward([*self.point.inputs[:position], place, *self.point.inputs[position + 1 :]])
            if not np.isfinite(row).any():
                break
        return np.stack([reals(place) for place in moved]) - start, values

    def _forward(self, inputs: Sequence[Array]) -> Array:
        """Returns the outputs as reals; NaN where the op raises or returns another shape."""
        try:
            values = as_reals(float_outputs(self._op, self._op.program.forward(inputs)))
        except Exception:  # an op may raise anything outside of its domain
            return np.asarray(np.nan)
        return values if values.shape == self.point.outputs.shape else np.asarray(np.nan)

    def _samples(  # noqa: PLR0917  # the columns of one record, from the two ways of sampling
        self, steps: Array, values: Array, start: Array, pulls: Array, weights: Array, units: Array
    ) -> Samples | None:
        if not (np.isfinite(values).all() and np.isfinite(steps).all()):
            return None
        return Samples(
            steps=steps,
            rises=values - start,
            peaks=np.abs(values).max(axis=0),
            quanta=granularity(values, units, is_known=self.scheme.grid_is_known),
            pulls=pulls,
            weights=weights,
        )
