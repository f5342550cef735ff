"""The ``op`` decorator: what it records, what it refuses, and that what it wraps stays what it was."""

import pytest
import tensorflow as tf

from gradserve_server import op
from gradserve_server.ops import OpDefinition, OpLoadError

X = {"x": tf.TensorSpec(None, tf.float32)}


def identity(x):
    """Returns x."""
    return x


def test_op_around_a_function_stays_callable() -> None:
    definition = op("scaled", inputs=X)(_scaled)
    assert isinstance(definition, OpDefinition)
    assert (definition(3.0), definition(3.0, scale=2.0)) == (3.0, 6.0)


def _scaled(x, scale=1.0):
    return x * scale


def test_op_around_a_custom_gradient_keeps_its_rule() -> None:
    definition = op("fixed_slope", inputs=X)(tf.custom_gradient(lambda x: (x * x, lambda dy: dy * 7.0)))
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = definition(x)
    assert (float(y), float(tape.gradient(y, x))) == (9.0, 7.0)


def test_op_without_name_takes_name_documentation_and_module_of_the_function() -> None:
    definition = op(inputs=X)(identity)
    assert (definition.name, definition.documentation) == ("identity", "Returns x.")
    assert definition.module == __name__


def test_op_around_a_tf_function_takes_the_name_of_its_function() -> None:
    assert op(inputs=X)(tf.function(identity)).name == "identity"


def test_op_around_a_named_object_takes_its_name() -> None:
    class Layer:
        name = "dense_7"

        def __call__(self, x):
            return x

    assert op(inputs=X)(Layer()).name == "dense_7"


def test_op_around_a_bound_method_keeps_the_object() -> None:
    class Scale:
        factor = 3.0

        def apply(self, x):
            return x * self.factor

    definition = op(inputs=X)(Scale().apply)
    assert (definition.name, definition(2.0)) == ("apply", 6.0)


def test_op_with_defaults_has_those_of_the_contract() -> None:
    definition = op(inputs=X)(identity)
    assert (definition.version, definition.signature, definition.gradient) == (1, "serving_default", "exact")
    assert (definition.elementwise, definition.stateful, definition.jit_compile) == (False, False, False)
    assert (definition.device, definition.outputs, definition.example, definition.dtypes) == (None, None, None, ())


@pytest.mark.parametrize("name", ["two words", "7th", "slash/ed", "é", "-x", "a" * 129])
def test_op_with_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a name has 1 to 128 letters"):
        op(name, inputs=X)(identity)


def test_op_around_a_lambda_without_name_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"give one: @op\('my_name', ...\)"):
        op(inputs=X)(lambda x: x)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"version": 0}, "version must be an integer of at least 1, got 0"),
        ({"version": 1.5}, "version must be an integer of at least 1, got 1.5"),
        ({"batch_axis": "a"}, "batch_axis must be an axis, or a mapping from names to axes, got 'a'"),
        ({"gradient": "maybe"}, "gradient must be 'exact', 'surrogate' or 'unchecked', got 'maybe'"),
        ({"signature": ""}, "a signature key is formed like a name, got ''"),
        ({"inputs": {}}, "inputs must be a mapping"),
        ({"inputs": [tf.TensorSpec(None, tf.float32)]}, "inputs must be a mapping"),
    ],
)
def test_op_with_a_bad_argument_is_refused_by_name(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        op("probe", **{"inputs": X, **arguments})(identity)
    assert str(raised.value).startswith("op 'probe': ")


def test_op_load_error_is_one_line_with_module_op_and_cause() -> None:
    error = OpLoadError("first\n  second", source="module 'ops.py'", cause="TRACE_FAILED", name="probe", version=2)
    assert str(error) == "module 'ops.py', op 'probe': TRACE_FAILED: first second"
