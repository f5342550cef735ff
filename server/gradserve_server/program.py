"""``Program``: what the traced functions of an op can do, whoever traced them."""

from collections.abc import Sequence
from typing import Protocol

from gradserve.tensors import Array

NO_LIMIT = 2**62
"""As many bytes as one likes."""


class Program(Protocol):
    """The traced functions of an op. Its methods are called by one thread at a time.

    Inputs and outputs are in the signature's order. A tensor is differentiable if its dtype is floating-point or complex; an
    input is connected if its spec in the signature says that it is differentiable.
    """

    @property
    def has_python(self) -> bool:
        """Whether it runs Python code, which may show to the author how often."""
        ...

    @property
    def is_bounded(self) -> bool:
        """Whether values cannot make it take much longer: it holds no loops, branches or Python code."""
        ...

    @property
    def trace_count(self) -> int:
        """How many concrete functions have been traced so far."""
        ...

    def forward(self, inputs: Sequence[Array]) -> list[Array]:
        """Evaluates the op; returns the outputs."""
        ...

    def vjp(
        self, inputs: Sequence[Array], output_gradients: Sequence[Array], *, with_variables: bool = False
    ) -> tuple[list[Array], list[Array]]:
        """Evaluates the op and pulls back ``output_gradients``, one per differentiable output.

        A rank-0 output gradient stands for that value in every element. Returns the outputs, and one gradient per
        connected input, followed by one per connected variable if they are asked for.
        """
        ...

    @property
    def vectorises(self) -> bool:
        """Whether the gradients of a stack are computed together, which is tried out when it is first asked for."""
        ...

    def stacked_vjp(
        self,
        inputs: Sequence[Array],
        output_gradients: Sequence[Array],
        stack: int,
        *,
        max_bytes: int = NO_LIMIT,
        with_variables: bool = False,
    ) -> tuple[list[Array], list[Array]]:
        """The same for ``stack`` gradients at once: output gradients (but those of rank 0) and gradients have a leading axis.

        If all output gradients, spread out, have more than ``max_bytes`` bytes, gradients have a single row, of no meaning.
        """
        ...

    def jacobian(self, inputs: Sequence[Array], max_rows: int) -> tuple[list[Array], list[list[Array | None]]]:
        """Evaluates the op and its Jacobians.

        Returns the outputs; and for each differentiable output and each input an array of shape (elements of the output,
        *shape of the input), or None where the output does not depend on the input. If the outputs have more than
        ``max_rows`` elements, these arrays have no rows.
        """
        ...

    def jvp(self, inputs: Sequence[Array], tangents: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
        """Evaluates the op and pushes forward ``tangents``, one per differentiable input, None for zeros.

        Returns the outputs, and a tangent per differentiable output, None where none of those given reaches it.
        """
        ...

    def hvp(
        self, inputs: Sequence[Array], output_gradients: Sequence[Array], vectors: Sequence[Array | None]
    ) -> tuple[list[Array], list[Array | None]]:
        """Evaluates the op, its gradients, and the gradient of their inner product with ``vectors``, given as for ``jvp``.

        Returns the outputs, and a product per input, None where the gradients do not depend on it.
        """
        ...

    def wide_forward(self, inputs: Sequence[Array]) -> list[Array]:
        """Evaluates the op's graph in float64, without the rounding of its own dtype; floats come and go in float64.

        Raises:
            Unsupported: The graph has no form for float64 (NO_WIDER_FORM).
        """
        ...

    def wide_vjp(
        self, inputs: Sequence[Array], output_gradients: Sequence[Array], *, nudged: bool = False
    ) -> tuple[list[Array], list[Array]]:
        """Does the same with the graph of ``vjp``; maybe with 16-bit constants moved by what their rounding may have."""
        ...

    def own_vjp(self, inputs: Sequence[Array], output_gradients: Sequence[Array]) -> list[Array | None]:
        """Returns what ``vjp`` would for each input, had the op no rule of its own; None where there is no gradient.

        Raises:
            Unsupported: TensorFlow has no derivative of the op's forward pass (NO_OWN_DERIVATIVE).
        """
        ...
