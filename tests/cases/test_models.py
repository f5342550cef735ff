"""Public cases A44, A48 and A49: rules in SavedModels and in Keras layers, in processes that did not save them."""

from collections.abc import Iterator
from pathlib import Path

import keras
import pytest
from tests.cases.arrays import assert_close, f32
from tests.cases.conftest import OPS
from tests.cases.ops import reversal_layer
from tests.support.models import save_keras, save_slope
from tests.support.processes import run_server, server_process

from gradserve import Client
from gradserve.errors import Code, OpContractError

LAYERS = OPS / "reversal_layer.py"
ROWS = f32([1, 2])


def a_model_of(layer: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((2,)), layer])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    """A client of a server in a process of its own, which serves every model of these cases."""
    for name, custom_gradients in (("on", True), ("default", None), ("off", False)):
        save_slope(folder / name, custom_gradients)
    save_keras(folder / "layer.keras", a_model_of(reversal_layer.DoubleWithSlopeTen()))
    save_keras(folder / "reversal.keras", a_model_of(reversal_layer.Reversal(0.25)))
    saved = [f"--saved-model={name}={folder / name}" for name in ("on", "default", "off")]
    files = [f"--keras-model={name}={folder / name}.keras" for name in ("layer", "reversal")]
    with server_process(*saved, *files, f"--custom-objects={LAYERS}") as server, Client(server.target) as client:
        yield client


@pytest.mark.parametrize("name", ["on", "default"])
def test_A44_rule_that_was_saved_counts_in_a_new_process(client: Client, name: str) -> None:
    result = client.vjp(name, ROWS)
    assert_close(result.output, f32([2, 4]))
    assert_close(result.gradient, f32([10, 10]))


def test_A44_rule_that_was_not_saved_is_refused_with_the_way_to_save_it(client: Client) -> None:
    assert_close(client.forward("off", ROWS).output, f32([2, 4]))
    with pytest.raises(OpContractError) as caught:
        client.vjp("off", ROWS)
    assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "NO_GRADIENT_RULE")
    assert "tf.saved_model.SaveOptions(experimental_custom_gradients=True)" in str(caught.value)


def test_A48_op_in_a_layer_keeps_its_rule(client: Client) -> None:
    result = client.vjp("layer", ROWS, f32([1, 3]))
    assert_close(result.output, f32([2, 4]))
    assert_close(result.gradient, f32([10, 30]))


def test_A48_op_on_a_symbolic_tensor_is_refused_while_the_module_is_loaded() -> None:
    module = OPS / "refused" / "symbolic_keras_tensor.py"
    ended = run_server(module)
    (message,) = [line for line in ended.stderr.splitlines() if line.startswith("gradserve-server: ")]
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert message.startswith(f"gradserve-server: module '{module}': IMPORT_FAILED: import failed with ValueError: ")
    assert "KerasTensor" in message


def test_A49_layer_comes_back_with_its_parameter(client: Client) -> None:
    result = client.vjp("reversal", ROWS, f32([4, 8]))
    assert_close(result.output, ROWS)
    assert_close(result.gradient, f32([-1, -2]))


def test_A49_unknown_class_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    file = save_keras(tmp_path / "reversal.keras", a_model_of(reversal_layer.Reversal(0.25)))
    ended = run_server(f"--keras-model=reversal={file}")
    (message,) = [line for line in ended.stderr.splitlines() if line.startswith("gradserve-server: ")]
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    for part in ("op 'reversal'", "UNKNOWN_CLASS", "class 'Reversal'", "--custom-objects MODULE"):
        assert part in message


def test_A49_code_in_a_file_is_never_run(tmp_path: Path) -> None:
    witness = str(tmp_path / "ran")
    model = a_model_of(keras.layers.Lambda(lambda x: (__import__("pathlib").Path(witness).touch(), x)[1]))
    Path(witness).unlink()  # building the model ran it
    ended = run_server(f"--keras-model=code={save_keras(tmp_path / 'code.keras', model)}")
    assert (ended.returncode, "UNSAFE_LAYER" in ended.stderr, Path(witness).exists()) == (2, True, False)
