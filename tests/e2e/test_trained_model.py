"""A Keras model with custom gradients, trained, saved and served by new processes, beside a local GradientTape."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.support.models import export_keras
from tests.support.processes import server_process

from gradserve import Client
from gradserve.errors import OpContractError

SCRIPT = Path(__file__).parents[2] / "examples" / "keras_model.py"
FEATURES = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
DY = np.random.default_rng(3).normal(size=(5, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example leaves behind: it builds the model, trains it for two epochs, and saves it."""
    folder = tmp_path_factory.mktemp("trained")
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keras_model_of_the_examples", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(script: ModuleType, folder: Path) -> keras.Model:
    classes = {"CustomSquareLayer": script.CustomSquareLayer, "QuantizeLayer": script.QuantizeLayer}
    return keras.saving.load_model(folder / "guide.keras", custom_objects=classes)


@pytest.fixture(scope="module")
def local(model: keras.Model) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Output and gradients of a tape, by name."""
    x = tf.constant(FEATURES)
    kernel, bias = (variable.value for variable in model.get_layer("dense").trainable_variables)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x, training=False)
    gradients = tape.gradient(y, [x, kernel, bias], output_gradients=tf.constant(DY))
    named = zip(("features", "dense/kernel", "dense/bias"), gradients, strict=True)
    return y.numpy(), {name: gradient.numpy() for name, gradient in named}


@pytest.fixture(scope="module")
def client(folder: Path, model: keras.Model) -> Iterator[Client]:
    """A client of a new process that serves the model from its file, and as a SavedModel with and without rules."""
    without_rules = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    export_keras(folder / "without_rules", model, without_rules)
    arguments = (
        f"--keras-model=keras={folder / 'guide.keras'}",
        f"--custom-objects={SCRIPT}",
        f"--saved-model=saved={folder / 'guide'}",
        f"--saved-model=without_rules={folder / 'without_rules'}",
    )
    with server_process(*arguments) as server, Client(server.target) as client:
        yield client


@pytest.mark.parametrize("op", ["keras", "saved"])
def test_trained_model_answers_like_a_local_tape(client: Client, op: str, local) -> None:
    result = client.vjp(op, FEATURES, DY, variable_gradients=True)
    output, gradients = local
    np.testing.assert_allclose(result.output, output, rtol=1e-6, atol=1e-6)
    served = {**result.input_gradients, **result.variable_gradients}
    assert list(served) == list(gradients)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(served[name], gradient, rtol=1e-6, atol=1e-6, err_msg=name)


def test_trained_model_has_gradients_of_its_rules_rather_than_of_its_steps(client: Client) -> None:
    result = client.vjp("keras", FEATURES, DY)
    assert np.all(np.abs(result.gradient).max(axis=0) > 0.01)  # the true slope of rounding is 0


def test_model_saved_without_rules_answers_forward_and_refuses_backward_with_a_remedy(client: Client, local) -> None:
    np.testing.assert_allclose(client.forward("without_rules", FEATURES).output, local[0], rtol=1e-6, atol=1e-6)
    with pytest.raises(OpContractError, match=r"SaveOptions\(experimental_custom_gradients=True\)") as caught:
        client.vjp("without_rules", FEATURES, DY)
    assert caught.value.reason == "NO_GRADIENT_RULE"


@pytest.mark.parametrize("op", ["keras", "saved"])
def test_trained_model_has_one_fingerprint_in_every_process(client: Client, serve, folder: Path, op: str) -> None:
    named = [f"keras={folder / 'guide.keras'}"], [f"saved={folder / 'guide'}"]
    server = serve(keras_models=named[0], saved_models=named[1], custom_objects=[str(SCRIPT)])
    with server.client() as other:
        assert other.op(op).fingerprint == client.op(op).fingerprint
