"""Compiled ops: the example is built with g++ and served from its module, and in SavedModels with its library."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tests.support.models import save_module
from tests.support.processes import run_server, server_process

from gradserve import Client
from gradserve.errors import OpContractError

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp_op"
R, DY = np.array([[-1.5, 0.0, 2.0]]), np.array([[1.0, 2.0, 3.0]])

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing, which builds the example op")


def potential(r: np.ndarray) -> np.ndarray:
    return 1.0 / np.sqrt(r**2 + 0.25)


def slope(r: np.ndarray) -> np.ndarray:
    return -r * potential(r) ** 3


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example, built as ``make cpp-op`` builds it."""
    folder = tmp_path_factory.mktemp("cpp_op") / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.so"))
    subprocess.run([sys.executable, str(folder / "build.py")], check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def library(built: Path) -> Path:
    return built / "softened_potential.so"


@pytest.fixture(scope="module")
def saved(built: Path, library: Path) -> Path:
    """A SavedModel that uses the op."""

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec(None, tf.float64, name="r")])
        def serving_default(self, r):
            return {"y": 2.0 * tf.load_op_library(str(library)).softened_potential(r=r, softening=0.5)}

    return save_module(built / "saved", Model(), "serving_default")


@pytest.fixture(scope="module")
def client(built: Path) -> Iterator[Client]:
    with server_process(str(built / "ops.py")) as server, Client(server.target) as client:
        yield client


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_compiled_op_has_the_values_and_gradients_of_its_formula(client: Client, dtype, tolerance: float) -> None:
    result = client.vjp("softened_potential", R.astype(dtype), DY.astype(dtype))
    assert (result.output.dtype, result.gradient.dtype) == (dtype, dtype)
    np.testing.assert_allclose(result.output, potential(R), rtol=tolerance)
    np.testing.assert_allclose(result.gradient, DY * slope(R), rtol=tolerance)


def test_compiled_op_passes_the_check_of_its_gradient(client: Client) -> None:
    checks = [client.check_gradient("softened_potential", signature=key) for key in ("serving_default", "float64")]
    assert [check.verdict for check in checks] == ["pass", "pass"]
    assert client.op("softened_potential").gradient == "exact"


def test_saved_model_with_a_compiled_op_is_served_with_its_library_and_gradient(built, library, saved) -> None:
    gradient = f"--custom-objects={built / 'ops.py'}"
    arguments = (f"--load-library={library}", f"--saved-model=field={saved}", gradient)
    with server_process(*arguments) as server, Client(server.target) as client:
        result = client.vjp("field", R, DY)
    np.testing.assert_allclose(result.output, 2.0 * potential(R), rtol=1e-14)
    np.testing.assert_allclose(result.gradient, 2.0 * DY * slope(R), rtol=1e-14)


def test_saved_model_with_a_compiled_op_that_has_no_gradient_answers_forward_alone(library, saved) -> None:
    arguments = (f"--load-library={library}", f"--saved-model=field={saved}")
    with server_process(*arguments) as server, Client(server.target) as client:
        np.testing.assert_allclose(client.forward("field", R).output, 2.0 * potential(R), rtol=1e-14)
        with pytest.raises(OpContractError, match="SoftenedPotential") as caught:
            client.vjp("field", R)
    assert caught.value.reason == "NO_GRADIENT_RULE"


def test_saved_model_with_a_compiled_op_is_refused_without_its_library(saved: Path) -> None:
    ended = run_server(f"--saved-model=field={saved}")
    assert ended.returncode == 2
    assert f"SavedModel {str(saved)!r}, op 'field': UNKNOWN_OPERATION: " in ended.stderr
    assert "'SoftenedPotential'; load the library that has it by --load-library" in ended.stderr
