"""Loading: from names of modules to a registry, and what a failure does when it stops the start or is skipped."""

from pathlib import Path

import pytest
from tests.server.helpers import ANY

from gradserve_server.loading import Failures, Sources, build_registry, find_ops
from gradserve_server.ops import OpDefinition, OpLoadError, op
from gradserve_server.scheduling.device import resolve

HERE = Path(__file__).parent
BEHAVIOUR, EXITS = (str(HERE / f"ops_{name}.py") for name in ("behaviour", "exits"))
LAYERS_ALONE = str(HERE / "layers.py")


def declare(name: str, version: int = 1, **declared) -> OpDefinition:
    return op(name, version=version, **{"inputs": {"x": ANY}, **declared})(lambda x: x * 2.0)


def on(wanted: str | None) -> str:
    return resolve(wanted or "cpu")


def build(*definitions: OpDefinition, skip: bool = False):
    failures = Failures(skip=skip)
    return build_registry([("probe.py", definition) for definition in definitions], on, failures), failures.skipped


def find(*modules: str, skip: bool = False, **named):
    failures = Failures(skip=skip)
    return find_ops(Sources(modules=modules, **named), failures), failures.skipped


def test_find_ops_says_of_each_op_where_it_comes_from() -> None:
    found, _ = find(BEHAVIOUR)
    assert {source for source, _ in found} == {f"module {BEHAVIOUR!r}"}
    assert [definition.name for _, definition in found] == ["square", "sleep", "record", "boom", "take"]


def test_find_ops_of_a_module_named_twice_imports_it_once() -> None:
    found, _ = find(BEHAVIOUR, BEHAVIOUR, custom_objects=[BEHAVIOUR])
    assert len({id(definition) for _, definition in found}) == len(found) == 5


def test_find_ops_that_skips_goes_on_after_each_failure() -> None:
    found, skipped = find(
        *(EXITS, LAYERS_ALONE, BEHAVIOUR),
        saved_models=[("m", "/no/such")],
        keras_models=[("k", "/no/such.keras")],
        libraries=["/no/such.so"],
        skip=True,
    )
    assert len(found) == 5
    causes = ["LIBRARY_FAILED", "IMPORT_FAILED", "NO_OPS", "NO_MODEL", "NO_MODEL"]
    assert [failure.cause for failure in skipped] == causes


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"modules": [EXITS, BEHAVIOUR]}, "only runs on Sundays"),
        ({"modules": [LAYERS_ALONE]}, "NO_OPS: .* by --custom-objects"),
        ({"saved_models": [("m", "/no/such")]}, "SavedModel '/no/such': NO_MODEL: no such folder"),
        ({"keras_models": [("k", "/no.keras")]}, "Keras model '/no.keras', op 'k': NO_MODEL: no such file"),
        ({"libraries": ["/no/such.so"]}, "library '/no/such.so': LIBRARY_FAILED: no such file"),
        ({"libraries": [BEHAVIOUR]}, "LIBRARY_FAILED: TensorFlow .* cannot load it"),
    ],
)
def test_find_ops_that_stops_raises_the_first_failure(named, text: str) -> None:
    with pytest.raises(OpLoadError, match=text):
        find_ops(Sources(**named), Failures(skip=False))


def test_find_ops_of_a_module_of_layers_alone_needs_no_op() -> None:
    assert find(custom_objects=[LAYERS_ALONE]) == ([], [])


def test_find_ops_claims_gradients_as_the_operator_says() -> None:
    found, _ = find(BEHAVIOUR, gradients={"square": "surrogate"})
    assert {definition.name: definition.gradient for _, definition in found if definition.gradient != "exact"} == {
        "square": "surrogate"
    }


def test_find_ops_of_a_claim_about_no_op_names_it() -> None:
    with pytest.raises(OpLoadError, match=r"gradients: NO_SUCH_OP: there is no op 'cube': wanted one of .*'square'"):
        find(BEHAVIOUR, gradients={"cube": "exact"})


def test_find_ops_of_a_claim_about_an_op_that_was_skipped_says_nothing_more() -> None:
    _, skipped = find(keras_models=[("k", "/no.keras")], gradients={"k": "exact"}, skip=True)
    assert [failure.cause for failure in skipped] == ["NO_MODEL"]


def test_build_registry_joins_signatures_and_versions() -> None:
    registry, _ = build(
        declare("a"),
        declare("a", version=2, dtypes=["float64"]),
        declare("a", signature="other"),
    )
    assert {(i.version, *i.signatures) for i in registry.infos()} == {
        (1, "serving_default", "other"),
        (2, "serving_default", "float64"),
    }


def test_build_registry_of_a_name_registered_twice_is_refused_by_name() -> None:
    with pytest.raises(OpLoadError, match=r"op 'a': DUPLICATE_NAME: version 1, signature 'serving_default'"):
        build(declare("a"), declare("a"))


def test_build_registry_of_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(OpLoadError, match="op 'a': NO_SUCH_DEVICE: device 'gpu:77': there is no such device"):
        build(declare("a", device="gpu:77"))


def test_build_registry_that_skips_keeps_the_rest_and_lists_what_failed() -> None:
    registry, skipped = build(declare("bad", device="gpu:77"), declare("good"), skip=True)
    assert [(info.name, bool(info.failure)) for info in registry.infos()] == [("bad", True), ("good", False)]
    assert [failure.cause for failure in skipped] == ["NO_SUCH_DEVICE"]


@pytest.mark.parametrize("broken", [lambda: None, lambda x: x["missing"]])
def test_build_registry_of_any_error_in_an_op_is_a_load_error(broken) -> None:
    with pytest.raises(OpLoadError):
        build(op("broken", inputs={"x": ANY})(broken))
