"""Random calls of the ops of ``ops_of_shapes``, each of other shapes."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from gradserve import aio
from gradserve.tensors import Array

MOST_ELEMENTS = 2**12
LARGE_ELEMENTS = 2**15
"""Tensors of so many are read and written in another way than smaller ones."""
LARGE_SHARE = 0.02
MOST_BESIDE_ZERO = 2**8
"""How large the other sizes of an empty tensor may be together: the server refuses those of several that multiply to much."""
_WEIGHT = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
Drawn = tuple[dict[str, Array], tuple[int, ...]]
"""Inputs by name, and the shape of the output."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call to make."""

    op: str
    """Name of the op."""
    inputs: dict[str, Array]
    """Inputs by name."""
    output_shape: tuple[int, ...]
    """Shape of the output."""
    output_gradient: Array | None
    """The output gradient; None to leave it out."""
    is_vjp: bool
    """Whether it asks for gradients."""
    variable_gradients: bool
    """Whether it asks for those of variables too."""

    async def send(self, client: aio.Client) -> None:
        """Makes the call.

        Raises:
            AssertionError: An output or gradient has another shape than it must have.
            GradserveError: The call failed.
        """
        if not self.is_vjp:
            result = await client.forward(self.op, self.inputs)
            assert result.output.shape == self.output_shape, self
            return
        given = None if self.output_gradient is None else {"output": self.output_gradient}
        found = await client.vjp(self.op, self.inputs, given, variable_gradients=self.variable_gradients)
        assert found.output.shape == self.output_shape, self
        for name, gradient in found.input_gradients.items():
            assert gradient is None or gradient.shape == self.inputs[name].shape, self

    def __str__(self) -> str:
        shapes = {name: array.shape for name, array in self.inputs.items()}
        return f"{'vjp' if self.is_vjp else 'forward'} of {self.op} at {shapes}"


def draw_call(ops: Sequence[str], rng: np.random.Generator) -> Call:
    """Draws a call of one of these ops; an op that is not known is one of a single input of any shape."""
    name = ops[rng.integers(len(ops))]
    inputs, output_shape = _DRAWS.get(name, _of_any_rank)(rng)
    is_given = rng.random() < 0.6
    dtype = inputs["x"].dtype
    return Call(
        op=name,
        inputs=inputs,
        output_shape=output_shape,
        output_gradient=rng.standard_normal(output_shape).astype(dtype) if is_given else None,
        is_vjp=bool(rng.random() < 0.6),
        variable_gradients=name == "shift" and bool(rng.random() < 0.5),
    )


def _size(rng: np.random.Generator, most: int = 128) -> int:
    """Draws a size, small ones more often than large ones, and sometimes none."""
    return 0 if rng.random() < 0.01 else int(most ** rng.random())


def _shape(rng: np.random.Generator, rank: int, *fixed: int) -> tuple[int, ...]:
    """Draws a shape of so many open sizes and then some fixed ones."""
    most = LARGE_ELEMENTS if rng.random() < LARGE_SHARE else MOST_ELEMENTS
    while True:
        sizes = [_size(rng, most) if rank == 1 else _size(rng) for _ in range(rank)]
        if np.prod([size or 1 for size in (*sizes, *fixed)]) <= (most if all(sizes) else MOST_BESIDE_ZERO):
            return (*sizes, *fixed)


def _floats(shape: Sequence[int], rng: np.random.Generator) -> Array:
    return np.asarray(rng.standard_normal(shape), np.float32)


def _of_any_rank(rng: np.random.Generator) -> Drawn:
    shape = _shape(rng, int(rng.integers(5)))
    return {"x": _floats(shape, rng)}, shape


def _of_either_dtype(rng: np.random.Generator) -> Drawn:
    inputs, shape = _of_any_rank(rng)
    return {"x": inputs["x"].astype(rng.choice(["float32", "float64"]))}, shape


def _pair(rng: np.random.Generator) -> Drawn:
    inputs, shape = _of_any_rank(rng)
    return inputs | {"y": _floats(shape, rng)}, shape


def _matrix(rng: np.random.Generator) -> Drawn:
    shape = _shape(rng, 2)
    return {"x": _floats(shape, rng)}, shape


def _vector(rng: np.random.Generator) -> Drawn:
    shape = _shape(rng, 1)
    return {"x": _floats(shape, rng)}, shape


def _filled_vector(rng: np.random.Generator) -> Drawn:
    """Draws inputs for ``sort``, of which TensorFlow's gradient fails for none."""
    shape = (max(*_shape(rng, 1), 1),)
    return {"x": _floats(shape, rng)}, shape


def _layer(rng: np.random.Generator) -> Drawn:
    x = _floats(_shape(rng, 1, 16), rng)
    return {"x": x, "weight": _WEIGHT}, (len(x), 8)


def _products(rng: np.random.Generator) -> Drawn:
    rows, height, width = _shape(rng, 3)
    other = _size(rng, 16)
    inputs = {"x": _floats((rows, height, width), rng), "y": _floats((rows, width, other), rng)}
    return inputs, (rows, height, other)


def _image(rng: np.random.Generator) -> Drawn:
    shape = tuple(max(size, 1) for size in _shape(rng, 3, 3))
    return {"x": _floats(shape, rng)}, shape


def _total(rng: np.random.Generator) -> Drawn:
    return _of_any_rank(rng)[0], ()


def _transposed(rng: np.random.Generator) -> Drawn:
    inputs, shape = _of_any_rank(rng)
    return inputs, shape[::-1]


def _matmul(rng: np.random.Generator) -> Drawn:
    (height, width), other = _shape(rng, 2), _size(rng, 32)
    return {"x": _floats((height, width), rng), "y": _floats((width, other), rng)}, (height, other)


def _matrix_and_vector(rng: np.random.Generator) -> Drawn:
    inputs, shape = _matrix(rng)
    return inputs | {"y": _floats(shape[1:], rng)}, shape


def _chosen(rng: np.random.Generator) -> Drawn:
    inputs, (height, width) = _matrix(rng)
    count = _size(rng, 32) if height else 0
    return inputs | {"rows": rng.integers(max(height, 1), size=count, dtype=np.int32)}, (count, width)


def _two_matrices(rng: np.random.Generator) -> Drawn:
    inputs, (height, width) = _matrix(rng)
    more = _size(rng, 16)
    return inputs | {"y": _floats((more, width), rng)}, (height + more, width)


_DRAWS: dict[str, Callable[[np.random.Generator], Drawn]] = {
    "softplus": _of_either_dtype,
    "gate": _pair,
    "clipped_product": _pair,
    "softmax": _matrix,
    "normalise": _matrix,
    "running_sum": _matrix,
    "layer": _layer,
    "products": _products,
    "blur": _image,
    "total": _total,
    "transpose": _transposed,
    "matmul": _matmul,
    "add_to_rows": _matrix_and_vector,
    "sort": _filled_vector,
    "choose": _chosen,
    "join": _two_matrices,
    "shift": _vector,
}
"""What draws inputs for an op, if they are not one tensor of any shape."""
