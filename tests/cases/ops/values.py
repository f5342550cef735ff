"""Ops whose gradient is the derivative, over the kinds of inputs and outputs that TensorFlow has."""

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
SCALAR = tf.TensorSpec([], tf.float32)
ANY64 = tf.TensorSpec(None, tf.float64)


@op(inputs={"x": ANY})
@tf.custom_gradient
def log_of_one_plus_exp(x):
    """The naive forward pass, which overflows, with a slope that does not."""
    exp = tf.exp(x)
    return tf.math.log(1.0 + exp), lambda dy: dy * (1.0 - 1.0 / (1.0 + exp))


@op(inputs={"z": tf.TensorSpec(None, tf.complex64)})
@tf.custom_gradient
def complex_square(z):
    return z * z, lambda dz: dz * tf.math.conj(2.0 * z)


@op(inputs={"x": ANY})
@tf.custom_gradient
def sqrt_with_slope_zero_at_zero(x):
    root = tf.sqrt(x)

    def grad(dy):
        positive = x > 0
        return tf.where(positive, dy * 0.5 / tf.where(positive, root, tf.ones_like(root)), tf.zeros_like(dy))

    return root, grad


@op(inputs={"x": ANY})
def plain_sqrt(x):
    return tf.sqrt(x)


@op(inputs={"table": tf.TensorSpec([None, None], tf.float32), "ids": tf.TensorSpec(None, tf.int32)})
def look_up(table, ids):
    return tf.gather(table, ids)


@op(inputs={"table": tf.TensorSpec([None, None], tf.float32), "ids": tf.TensorSpec(None, tf.int32)})
def look_up_twice_and_sum(table, ids):
    return tf.gather(table, ids) + tf.gather(table, ids[::-1]) + tf.reduce_sum(table)


@op(inputs={"table": tf.TensorSpec([None, None], tf.float32), "ids": tf.TensorSpec([None], tf.int32)})
@tf.custom_gradient
def look_up_with_rule(table, ids):
    """The rule names rows and their gradients, and leaves out the shape of the whole."""
    return tf.gather(table, ids), lambda dy: (tf.IndexedSlices(dy, ids), None)


@op(
    inputs={"table": tf.TensorSpec([None, None], tf.float32), "ids": tf.TensorSpec(None, tf.int32)},
    gradient="surrogate",
)
def look_up_in_doubling_table(table, ids):
    """The rule below the gather insists on the sparse gradient that a gather sends it."""

    @tf.custom_gradient
    def table_whose_gradient_doubles(rows):
        def grad(dy):
            if not isinstance(dy, tf.IndexedSlices):
                raise TypeError(f"wanted IndexedSlices, got {type(dy).__name__}")
            return tf.convert_to_tensor(dy) * 2.0

        return tf.identity(rows), grad

    return tf.gather(table_whose_gradient_doubles(table), ids)


@op(inputs={"mode": tf.TensorSpec([], tf.string), "x": ANY})
@tf.custom_gradient
def signed(mode, x):
    sign = tf.where(mode == "plus", 1.0, -1.0)
    return sign * x, lambda dy: (None, sign * dy)


@op(inputs={"x": ANY}, outputs=["label", "doubled"])
def labelled(x):
    return tf.where(tf.reduce_sum(x) > 0, "up", "down"), 2.0 * x


@op(inputs={"a": ANY, "b": ANY, "c": ANY, "d": ANY})
@tf.custom_gradient
def two_of_four(a, b, c, d):
    return (a * b + c, c * d), lambda u, v: (u * b, u * a, u + v * d, v * c)


@op(inputs={"x": ANY64})
@tf.custom_gradient
def add_a_trillionth(x):
    tiny = tf.constant(1e-12, tf.float64)
    return x + tiny, lambda dy: dy * (1.0 + tiny)


@op(inputs={"x": ANY64, "unused": ANY64})
def first_of_two(x, unused):
    del unused
    return 2.0 * x


@op(inputs={"x": ANY, "mask": tf.TensorSpec(None, tf.bool)})
@tf.custom_gradient
def masked(x, mask):
    return tf.where(mask, x, 0.0), lambda dy: (tf.where(mask, dy, 0.0), None)


@op(inputs={"x": ANY, "times": tf.TensorSpec(None, tf.int32)})
def times_an_integer(x, times):
    return x * tf.cast(times, tf.float32)


@op(inputs={"x": ANY})
@tf.custom_gradient
def cube(x):
    return x**3, lambda dy: dy * 3.0 * x**2


@op(inputs={"x": SCALAR})
@tf.custom_gradient
def scalar_cube(x):
    return x**3, lambda dy: dy * 3.0 * x**2


@op(inputs={"values": tf.TensorSpec([None], tf.float32), "indices": tf.TensorSpec([None, 2], tf.int64)})
def doubled_two_by_two(values, indices):
    return tf.sparse.to_dense(tf.SparseTensor(indices, values, [2, 2])) * 2.0


@op(inputs={"values": tf.TensorSpec([None], tf.float32), "row_splits": tf.TensorSpec([None], tf.int64)})
def ragged_by_parts(values, row_splits):
    @tf.custom_gradient
    def double_with_slope_three(ragged):
        return ragged * 2.0, lambda dy: dy * 3.0

    return double_with_slope_three(tf.RaggedTensor.from_row_splits(values, row_splits)).flat_values


@op(inputs={"x": ANY, "w": ANY})
def times_a_captured_tensor(x, w):
    """The rule knows ``x`` alone; ``w`` comes through the closure, so its gradient is lost."""

    @tf.custom_gradient
    def times_w(inner):
        return inner * w, lambda dy: dy * w

    return times_w(x)


@op(inputs={"x": ANY}, gradient="surrogate")
@tf.custom_gradient
def identity_with_negated_grad(x):
    return tf.identity(x), lambda dy: -dy


@op(inputs={"x": ANY})
@tf.custom_gradient
def identity_with_custom_grad(x):
    return tf.identity(x), tf.identity


@op(inputs={"x": ANY, "beta": ANY})
def silu_from_parts(x, beta):
    return x * tf.sigmoid(beta * x)
