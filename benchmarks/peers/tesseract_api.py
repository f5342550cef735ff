"""The op as Tesseract's runtime serves it. It has no call for output and gradient at once: its VJP gives the gradient alone."""

from typing import Any

from op import tf, vjp
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float32


class InputSchema(BaseModel):
    """Inputs."""

    x: Differentiable[Array[(None, None), Float32]]


class OutputSchema(BaseModel):
    """Outputs."""

    y: Differentiable[Array[(None, None), Float32]]


def apply(inputs: InputSchema) -> OutputSchema:
    """Returns the square."""
    return OutputSchema(y=tf.square(inputs.x).numpy())


def vector_jacobian_product(
    inputs: InputSchema, vjp_inputs: set[str], vjp_outputs: set[str], cotangent_vector: dict[str, Any]
) -> dict[str, Any]:
    """Returns the gradient of x."""
    _, dx = vjp(tf.constant(inputs.x), tf.constant(cotangent_vector["y"]))
    return {"x": dx.numpy()}
