"""Tesseract's own client, which blocks; each caller is a thread."""

import sys
from collections.abc import Callable

import child
from tesseract_core import Tesseract


def make_call(x: child.Array, dy: child.Array) -> Callable[[], object]:
    """Returns a function that makes one call."""
    client = Tesseract.from_url(f"http://127.0.0.1:{sys.argv[1]}")
    return lambda: client.vector_jacobian_product(
        inputs={"x": x}, vjp_inputs=["x"], vjp_outputs=["y"], cotangent_vector={"y": dy}
    )


child.serve(child.round_of_threads(make_call))
