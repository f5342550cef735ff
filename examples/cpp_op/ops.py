"""A compiled op with a compiled gradient: ``make cpp-op`` builds it, ``gradserve-server examples/cpp_op/ops.py`` serves it.

A SavedModel that uses the op is served with ``--load-library examples/cpp_op/softened_potential.so``, and with
``--custom-objects examples/cpp_op/ops.py`` for the gradient, which no SavedModel holds.
"""

from pathlib import Path

import tensorflow as tf

from gradserve_server import op

kernels = tf.load_op_library(str(Path(__file__).resolve().with_name("softened_potential.so")))


@tf.RegisterGradient("SoftenedPotential")
def softened_potential_gradient(operation, dy):
    """Calls the compiled gradient: dr = dy * -r (r^2 + eps^2)^(-3/2)."""
    (r,) = operation.inputs
    return kernels.softened_potential_grad(r=r, dy=dy, softening=operation.get_attr("softening"))


@op(inputs={"r": tf.TensorSpec(None, tf.float32)}, dtypes=[tf.float64], elementwise=True, device="cpu")
def softened_potential(r):
    """Potential of a unit charge at distance r, smeared out over a length of 0.5.

    y = (r^2 + 0.25)^(-1/2).
    """
    return kernels.softened_potential(r=r, softening=0.5)
