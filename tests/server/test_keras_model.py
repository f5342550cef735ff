"""Keras models as sources: names, structures, precision, layers of modules, and what is refused in one line."""

from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.server import layers
from tests.server.helpers import floats
from tests.support.models import save_keras

from gradserve import Client
from gradserve_server.loading import Failures, Sources, build_registry, find_ops
from gradserve_server.ops import OpLoadError
from gradserve_server.registry import Registry
from gradserve_server.testing import RunningServer

LAYERS = str(Path(layers.__file__))


def dense(units: int, name: str, **options) -> keras.layers.Layer:
    return keras.layers.Dense(units, kernel_initializer="ones", name=name, **options)


def two_inputs() -> keras.Model:
    left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
    outputs = [dense(1, "total")(keras.layers.Add(name="sum")([left, right])), dense(2, "of_right")(right)]
    return keras.Model([left, right], outputs)


def by_keys() -> keras.Model:
    inputs = {name: keras.Input((2,), name=name) for name in ("q", "p")}
    return keras.Model(inputs, {"v": 2.0 * inputs["q"], "u": 3.0 * inputs["p"]})


def shared_layer() -> keras.Model:
    left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
    layer = dense(1, "shared")
    return keras.Model([left, right], [layer(left), layer(right)])


def sequential(*more: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((2,), name="features"), *more])


def in_precision(policy: str) -> keras.Model:
    return sequential(dense(1, "dense", dtype=policy))


def after_training() -> keras.Model:
    layer = keras.layers.BatchNormalization(name="norm")
    layer.trainable = False
    return sequential(keras.layers.Dropout(0.9), layer, dense(1, "dense"))


def embedding() -> keras.Model:
    rows = keras.Input((None,), dtype="int32", name="rows")
    return keras.Model(rows, keras.layers.Embedding(4, 2, embeddings_initializer="ones", name="table")(rows))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "two_inputs": two_inputs,
    "by_keys": by_keys,
    "shared_layer": shared_layer,
    "after_training": after_training,
    "embedding": embedding,
    "half": lambda: in_precision("mixed_float16"),
    "brain": lambda: in_precision("mixed_bfloat16"),
    "reversal": lambda: sequential(layers.Reversal(0.25, name="reversal")),
    "doubling": lambda: sequential(layers.Doubling(name="doubling")),
    "tripling": lambda: sequential(dense(1, "dense", activation=layers.triple)),
    "rectified": lambda: sequential(dense(1, "dense", activation="relu")),
}


def load(file: str, **named) -> Registry:
    failures = Failures(skip=False)
    return build_registry(find_ops(Sources(keras_models=[("m", file)], **named), failures), lambda _: "cpu:0", failures)


@pytest.fixture(scope="module")
def server(serve: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    folder = tmp_path_factory.mktemp("keras_models")
    files = {name: save_keras(folder / f"{name}.keras", build()) for name, build in MODELS.items()}
    named = [f"{name}={file}" for name, file in files.items()]
    return serve(keras_models=named, custom_objects=[LAYERS], gradients=["reversal=surrogate"])


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("two_inputs", ["left", "right"], ["total", "of_right"]),
        ("by_keys", ["q", "p"], ["v", "u"]),
        ("shared_layer", ["left", "right"], ["shared", "shared_1"]),
        ("reversal", ["features"], ["reversal"]),
        ("embedding", ["rows"], ["table"]),
    ],
)
def test_model_keeps_its_names(client: Client, name: str, inputs: list[str], outputs: list[str]) -> None:
    signature = client.op(name).signatures["serving_default"]
    assert (list(signature.inputs), sorted(signature.outputs)) == (inputs, sorted(outputs))


def test_model_of_several_inputs_and_outputs_has_a_gradient_for_each_input(client: Client) -> None:
    rows = {"left": np.float32([[1, 2]]), "right": np.float32([[3, 4]])}
    dy = {"total": np.float32([[1]]), "of_right": np.float32([[10, 100]])}
    result = client.vjp("two_inputs", rows, dy, variable_gradients=True)
    assert (result.outputs["total"].tolist(), result.outputs["of_right"].tolist()) == ([[10.0]], [[7.0, 7.0]])
    assert result.input_gradients["left"].tolist() == [[1.0, 1.0]]
    assert result.input_gradients["right"].tolist() == [[111.0, 111.0]]
    assert list(result.variable_gradients) == ["total/kernel", "total/bias", "of_right/kernel", "of_right/bias"]
    assert result.variable_gradients["of_right/kernel"].tolist() == [[30.0, 300.0], [40.0, 400.0]]


def test_model_by_keys_takes_and_returns_them(client: Client) -> None:
    result = client.vjp("by_keys", {"p": np.float32([[1, 2]]), "q": np.float32([[3, 4]])})
    assert (result.outputs["u"].tolist(), result.outputs["v"].tolist()) == ([[3.0, 6.0]], [[6.0, 8.0]])
    assert (result.input_gradients["p"].tolist(), result.input_gradients["q"].tolist()) == ([[3.0] * 2], [[2.0] * 2])


@pytest.mark.parametrize(("name", "dtype"), [("half", "float16"), ("brain", "bfloat16")])
def test_model_in_mixed_precision_says_the_true_dtype_of_its_output(client: Client, name: str, dtype: str) -> None:
    signature = client.op(name).signatures["serving_default"]
    assert (signature.inputs["features"].dtype.name, signature.outputs["dense"].dtype.name) == ("float32", dtype)
    result = client.vjp(name, np.float32([[1, 2]]), variable_gradients=True)
    assert (result.output.dtype.name, result.gradient.dtype.name, result.output.item()) == (dtype, "float32", 3.0)
    assert result.variable_gradients["dense/kernel"].tolist() == [[1.0], [2.0]]


def test_model_is_run_as_after_training_and_frozen_layers_stay_frozen(client: Client) -> None:
    result = client.vjp("after_training", np.float32([[1000, 1000]]), variable_gradients=True)
    assert result.output.item() == pytest.approx(2000.0, rel=1e-3)  # the dropout is off, the moving mean is 0
    assert list(result.variable_gradients) == ["dense/kernel", "dense/bias"]


def test_model_of_integer_inputs_has_the_gradient_of_its_table(client: Client) -> None:
    result = client.vjp("embedding", {"rows": np.array([[1, 1, 3]], np.int32)}, variable_gradients=True)
    assert result.status["rows"] == "not_differentiable"
    assert result.variable_gradients["table/embeddings"].tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_layer_of_a_module_comes_back_with_its_parameters_and_its_rule(client: Client) -> None:
    result = client.vjp("reversal", np.float32([[1, 2]]), np.float32([[4, 8]]))
    assert (result.output.tolist(), result.gradient.tolist()) == ([[1.0, 2.0]], [[-1.0, -2.0]])
    assert (client.op("reversal").gradient, client.op("doubling").gradient) == ("surrogate", "unchecked")


@pytest.mark.parametrize(("name", "output"), [("doubling", [[-2.0, 4.0]]), ("tripling", [[3.0]]), ("rectified", [[1]])])
def test_registered_layers_functions_and_those_of_keras_itself_are_found(client: Client, name: str, output) -> None:
    assert client.forward(name, np.float32([[-1, 2]])).output.tolist() == output


class Unknown(keras.layers.Layer):
    def call(self, x):
        return x


class Subclassed(keras.Model):
    def call(self, x):
        return x


def unbuilt() -> keras.Model:
    return keras.Sequential([dense(1, "dense")])


def subclassed() -> keras.Model:
    model = Subclassed()
    model(floats(1, 2)[None])
    return model


def sparse() -> keras.Model:
    rows = keras.Input((2,), sparse=True, name="rows")
    return keras.Model(rows, dense(1, "dense")(rows))


@pytest.mark.parametrize(
    ("build", "cause", "said"),
    [
        (
            lambda: sequential(Unknown()),
            "UNKNOWN_CLASS",
            "defines its class 'Unknown'; name the module .* by --custom-o",
        ),
        (lambda: sequential(keras.layers.Lambda(lambda x: x)), "UNSAFE_LAYER", "Lambda layer, .* never run"),
        (lambda: sequential(dense(1, "d", activation=layers.reverse_with_strength)), "LOAD_FAILED", "plain function"),
        (lambda: sequential(dense(1, "d", activation=floats)), "UNKNOWN_CLASS", "its function 'floats'"),
        (unbuilt, "UNKNOWN_INPUTS", "make it of keras.Input"),
        (subclassed, "UNKNOWN_INPUTS", "--saved-model"),
        (sparse, "UNSUPPORTED_KIND", "input 'rows': only dense tensors are served"),
    ],
)
def test_model_that_cannot_be_served_is_refused_in_one_line(tmp_path: Path, build, cause: str, said: str) -> None:
    load_of_subclassed = {"custom_objects": [str(Path(__file__))]} if build is subclassed else {}
    file = str(save_keras(tmp_path / "model.keras", build()))
    with pytest.raises(OpLoadError, match=said) as raised:
        load(file, **load_of_subclassed)
    assert str(raised.value).startswith(f"Keras model {file!r}, op 'm': {cause}: ")
    assert "\n" not in str(raised.value)
    assert "config" not in str(raised.value)


@pytest.mark.parametrize(("name", "said"), [("none.keras", "no such file"), ("model.h5", "ends in .keras")])
def test_file_that_is_no_keras_model_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "model.h5").touch()
    with pytest.raises(OpLoadError, match=f"NO_MODEL: .*{said}"):
        load(str(tmp_path / name))


def test_file_that_is_broken_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_bytes(b"no archive\n")
    with pytest.raises(OpLoadError, match="LOAD_FAILED: Keras cannot load it: ") as raised:
        load(str(tmp_path / "model.keras"))
    assert "\n" not in str(raised.value)


def test_fingerprint_of_a_model_covers_its_weights(tmp_path: Path) -> None:
    model = two_inputs()
    files = [str(save_keras(tmp_path / f"{number}.keras", model)) for number in range(2)]
    model.get_layer("total").bias.assign([0.5])
    files.append(str(save_keras(tmp_path / "other.keras", model)))
    one, same, other = (load(file).infos()[0].fingerprint for file in files)
    assert one == same != other
