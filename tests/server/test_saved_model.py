"""SavedModels as sources: signatures, versions, variables, saved rules and rules that were not, and what is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import floats, has_path_or_traceback
from tests.support.models import ROWS, save_module, save_slope

from gradserve import Client
from gradserve.errors import OpContractError
from gradserve_server.loading import Failures, Sources, build_registry, find_ops
from gradserve_server.ops import OpLoadError
from gradserve_server.registry import Registry
from gradserve_server.testing import RunningServer

ANY = tf.TensorSpec(None, tf.float32)
RAGGED = tf.RaggedTensorSpec([None, None], tf.float32)


class Choice(tf.Module):
    """A signature with a string, a table and variables, whose inputs come in no order of their names."""

    def __init__(self, weight: float = 3.0) -> None:
        self.weight = tf.Variable(weight, name="weight")
        self.frozen = tf.Variable(1.0, name="frozen", trainable=False)
        keys_and_values = tf.lookup.KeyValueTensorInitializer(["minus", "plus"], [-1.0, 1.0])
        self.signs = tf.lookup.StaticHashTable(keys_and_values, 0.0)

    @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="mode"), ANY, ANY])
    def choose(self, mode, b, a):
        return {"z": a + self.signs.lookup(mode) * self.weight * b * self.frozen, "asked": mode}

    @tf.function(input_signature=[ROWS])
    def serving_default(self, x):
        return {"y": x * self.weight}


class Refused(tf.Module):
    """A method for each kind of signature that is not served."""

    def __init__(self) -> None:
        self.count = tf.Variable(0.0)

    @tf.function(input_signature=[ROWS])
    def counting(self, x):
        return {"y": x + self.count.assign_add(1.0)}

    @tf.function(input_signature=[ROWS])
    def ragged_output(self, x):
        return {"y": tf.RaggedTensor.from_tensor(x)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.qint8, name="x")])
    def quantized(self, x):
        return {"y": tf.bitcast(x, tf.int8)}

    @tf.function(input_signature=[])
    def without_inputs(self):
        return {"y": self.count.read_value()}

    @tf.function(input_signature=[RAGGED])
    def ragged_input(self, x):
        return {"y": 2.0 * x.values}


class Looped(tf.Module):
    """A custom rule inside a loop, of which TensorFlow saves too little to load it."""

    @tf.function(input_signature=[ROWS])
    def serving_default(self, x):
        @tf.custom_gradient
        def square(x):
            return x * x, lambda dy: dy * 10.0 * x

        return {"y": tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, square(y)), [0, x])[1]}


def load(folder: Path, name: str = "m", skip: bool = False) -> Registry:
    failures = Failures(skip=skip)
    found = find_ops(Sources(saved_models=[(name, str(folder))]), failures)
    return build_registry(found, lambda _: "cpu:0", failures)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved_models")


@pytest.fixture(scope="module")
def server(serve: Callable[..., RunningServer], folder: Path) -> RunningServer:
    save_module(folder / "choice", Choice(), "choose", "serving_default")
    save_module(folder / "ragged", Refused(), "ragged_input")
    save_module(folder / "looped", Looped(), "serving_default")
    save_slope(folder / "slope" / "2")
    save_slope(folder / "slope" / "10", custom_gradients=False)
    (folder / "slope" / "notes").mkdir()
    names = ("choice", "looped", "ragged", "slope")
    return serve(saved_models=[f"{name}={folder / name}" for name in names], gradients=["slope=surrogate"])


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def test_signatures_keep_the_names_of_the_model_in_a_fixed_order(client: Client) -> None:
    info = client.op("choice")
    assert list(info.signatures) == ["serving_default", "choose"]
    choose = info.signatures["choose"]
    assert (list(choose.inputs), list(choose.outputs)) == (["a", "b", "mode"], ["asked", "z"])
    assert (info.signatures["serving_default"].inputs["x"].shape, info.gradient) == ((None, 2), "unchecked")


def test_signature_that_is_named_answers_with_strings_and_a_table(client: Client) -> None:
    inputs = {"mode": "minus", "a": np.float32(10.0), "b": floats(1, 2)}
    result = client.vjp("choice", inputs, {"z": floats(1, 10)}, signature="choose", variable_gradients=True)
    assert result.outputs["z"].tolist() == [7.0, 4.0]
    assert result.outputs["asked"] == b"minus"
    assert (result.input_gradients["a"], result.input_gradients["b"].tolist()) == (11.0, [-3.0, -30.0])
    assert result.variable_gradients == {"weight": -21.0}


def test_variables_of_a_model_are_listed_with_shape_and_whether_they_are_trained(client: Client) -> None:
    listed = client.op("choice").variables
    assert {name: (spec.shape, spec.differentiable) for name, spec in listed.items()} == {
        "weight": ((), True),
        "frozen": ((), False),
    }


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_saved_rule_counts_for_any_number_of_rows(client: Client, rows: int) -> None:
    x = np.ones((rows, 2), np.float32)
    result = client.vjp("slope", x, 3.0 * x, version=2)
    assert (result.output.tolist(), result.gradient.tolist()) == ((2.0 * x).tolist(), (30.0 * x).tolist())


def test_numbered_folders_are_versions_and_the_highest_number_is_the_newest(client: Client) -> None:
    assert [(info.version, info.gradient) for info in client.ops() if info.name == "slope"] == [
        (2, "surrogate"),
        (10, "surrogate"),
    ]
    assert client.forward("slope", np.ones((1, 2), np.float32)).version == 10


def test_rule_that_was_not_saved_is_refused_where_the_process_happens_to_know_one_of_its_number(client) -> None:
    with pytest.raises(OpContractError, match=r"SaveOptions\(experimental_custom_gradients=True\)") as raised:
        client.vjp("slope", np.ones((1, 2), np.float32), version=10)
    assert raised.value.reason == "NO_GRADIENT_RULE"


def test_rule_that_was_saved_inside_a_loop_is_refused_and_the_forward_pass_is_served(client: Client) -> None:
    x = 2.0 * np.ones((1, 2), np.float32)
    assert client.forward("looped", x).output.tolist() == [[256.0, 256.0]]
    with pytest.raises(OpContractError, match="put the loop into it") as raised:
        client.vjp("looped", x, x)
    assert raised.value.reason == "NO_GRADIENT_RULE"


def test_ragged_input_is_served_as_the_two_tensors_that_the_model_makes_of_it(client: Client) -> None:
    assert list(client.op("ragged").signatures["ragged_input"].inputs) == ["x", "x_1"]
    inputs = {"x": floats(1, 2), "x_1": np.array([0, 2], np.int64)}
    assert client.vjp("ragged", inputs, floats(1, 10)).input_gradients["x"].tolist() == [2.0, 20.0]


@pytest.mark.parametrize(
    ("signature", "cause", "said"),
    [
        ("counting", "ASSIGNS_VARIABLE", "AssignAddVariableOp"),
        ("ragged_output", "UNSUPPORTED_KIND", "output 'y': only dense tensors are served"),
        ("quantized", "UNSUPPORTED_KIND", "input 'x': dtype qint8 is not served"),
        ("without_inputs", "BAD_SIGNATURE", "signature 'without_inputs' takes no inputs"),
    ],
)
def test_signature_of_a_kind_that_is_not_served_is_refused(tmp_path: Path, signature, cause, said) -> None:
    path = save_module(tmp_path / "model", Refused(), signature)
    with pytest.raises(OpLoadError) as raised:
        load(path)
    assert str(raised.value).startswith(f"SavedModel {str(path)!r}, op 'm': {cause}: ")
    assert said in str(raised.value)


def test_skipped_version_is_listed_without_its_path(tmp_path: Path) -> None:
    save_slope(tmp_path / "1")
    save_module(tmp_path / "2", tf.Module())
    good, bad = load(tmp_path, skip=True).infos()
    assert (good.version, good.failure, bad.version) == (1, "", 2)
    assert bad.failure == "NO_SIGNATURES: it has no signatures; save it with signatures={...}"


def test_model_that_is_broken_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"no model\n")
    with pytest.raises(OpLoadError, match="LOAD_FAILED: it cannot be loaded: ") as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)
    (info,) = load(tmp_path, skip=True).infos()
    assert not has_path_or_traceback(info.failure)


@pytest.mark.parametrize(("name", "said"), [("none", "no such folder"), ("", "it holds no saved_model.pb")])
def test_folder_without_a_model_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "0").mkdir()
    with pytest.raises(OpLoadError, match=f"SavedModel .*: NO_MODEL: {said}"):
        load(tmp_path / name)


def test_fingerprint_of_a_model_covers_its_weights(tmp_path: Path) -> None:
    weights = {"one": 3.0, "same": 3.0, "other": 4.0}
    for name, weight in weights.items():
        save_module(tmp_path / name, Choice(weight), "serving_default")
    one, same, other = (load(tmp_path / name).infos()[0].fingerprint for name in weights)
    assert one == same != other
