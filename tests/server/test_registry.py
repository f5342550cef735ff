"""The registry: names, versions and signature keys to ops; what is not there; what could not be loaded."""

import dataclasses

import numpy as np
import pytest

from gradserve.dtypes import dtype_named
from gradserve.errors import NotFound, OpContractError
from gradserve.signature import Signature, TensorSpec
from gradserve_server.ops import Op, OpLoadError
from gradserve_server.registry import Registry


class Unused:
    """A program that no test here runs."""

    def forward(self, inputs):
        raise NotImplementedError

    def vjp(self, inputs, output_gradients):
        raise NotImplementedError


def make(name: str = "square", version: int = 1, key: str = "serving_default", dtype: str = "float32") -> Op:
    spec = TensorSpec(name="x", dtype=dtype_named(dtype), shape=None, differentiable=True)
    return Op(
        name=name,
        version=version,
        signature=Signature(key=key, inputs={"x": spec}, outputs={"output": dataclasses.replace(spec, name="output")}),
        documentation=f"{name} {version}",
        gradient="exact",
        elementwise=True,
        stateful=False,
        device="cpu:0",
        fingerprint=f"{name}{version}{key}",
        program=Unused(),
        variables={},
        connected_variables=(),
        example=[],
        example_is_given=False,
        source="module 'ops.py'",
    )


FAILURE = OpLoadError("why", source="module 'ops.py'", cause="TRACE_FAILED", name="broken", version=3)


def test_registry_lists_versions_by_name_and_then_by_number() -> None:
    registry = Registry([make("b", 10), make("b", 9), make("a"), make("b", 2)], [FAILURE])
    assert [(info.name, info.version) for info in registry.infos()] == [
        ("a", 1),
        ("b", 2),
        ("b", 9),
        ("b", 10),
        ("broken", 3),
    ]


@pytest.mark.parametrize(("asked", "found"), [(0, 10), (10, 10), (9, 9)])
def test_find_takes_the_version_asked_for_and_zero_as_the_newest(asked: int, found: int) -> None:
    registry = Registry([make(version=10), make(version=9)])
    assert registry.find("square", asked).info.version == found


def test_find_of_an_unknown_name_is_not_found_and_quotes_it_short() -> None:
    with pytest.raises(NotFound, match="no such op: got 'nope'") as raised:
        Registry([make()]).find("nope", 0)
    assert raised.value.reason == "NO_SUCH_OP"
    with pytest.raises(NotFound) as raised:
        Registry([]).find("é\n" * 5000, 0)
    assert len(str(raised.value)) < 400
    assert str(raised.value).isascii()


def test_find_of_an_unknown_version_names_those_there_are() -> None:
    with pytest.raises(NotFound, match="wanted one of 1, 2, got 7") as raised:
        Registry([make(version=2), make(version=1)]).find("square", 7)
    assert (raised.value.reason, raised.value.facts) == ("NO_SUCH_VERSION", {"op": "square"})


def test_select_without_key_takes_the_signature_whose_dtypes_fit() -> None:
    version = Registry([make(), make(key="float64", dtype="float64")]).find("square", 0)
    assert version.select("", {"x": np.float64(1)[...]}).signature.key == "float64"
    assert version.select("", {"x": np.float32(1)[...]}).signature.key == "serving_default"


def test_select_without_key_takes_the_first_where_none_fits() -> None:
    version = Registry([make(), make(key="float64", dtype="float64")]).find("square", 0)
    assert version.select("", {"x": np.int32(1)[...]}).signature.key == "serving_default"


def test_select_with_a_key_takes_it_whatever_the_dtypes() -> None:
    version = Registry([make(), make(key="float64", dtype="float64")]).find("square", 0)
    assert version.select("float64", {"x": np.float32(1)[...]}).signature.key == "float64"


def test_select_of_an_unknown_key_names_those_there_are() -> None:
    version = Registry([make(), make(key="float64", dtype="float64")]).find("square", 0)
    with pytest.raises(NotFound, match="wanted one of 'serving_default', 'float64', got 'half'") as raised:
        version.select("half", {})
    assert raised.value.reason == "NO_SUCH_SIGNATURE"


def test_infos_show_every_signature_of_a_version_default_first() -> None:
    (info,) = Registry([make(), make(key="float64", dtype="float64")]).infos()
    assert list(info.signatures) == ["serving_default", "float64"]
    assert (info.documentation, info.device, info.elementwise, info.failure) == ("square 1", "cpu:0", True, "")


def test_infos_fingerprint_depends_on_every_signature() -> None:
    one = Registry([make()]).infos()[0].fingerprint
    two = Registry([make(), make(key="float64", dtype="float64")]).infos()[0].fingerprint
    assert len({one, two}) == 2
    assert len(one) == len(two) == 32


def test_failed_op_is_listed_with_its_failure_and_refuses_calls() -> None:
    registry = Registry([make()], [FAILURE])
    assert registry.find("broken", 0).info.failure == "TRACE_FAILED: why"
    with pytest.raises(OpContractError, match="version 3 could not be loaded: TRACE_FAILED: why") as raised:
        registry.find("broken", 0).check_loaded()
    assert (raised.value.reason, raised.value.facts["cause"]) == ("OP_NOT_LOADED", "TRACE_FAILED")


def test_failed_version_leaves_the_others_callable() -> None:
    registry = Registry([make("broken", 2)], [FAILURE])
    assert registry.find("broken", 2).info.version == 2
    with pytest.raises(OpContractError):
        registry.find("broken", 0).check_loaded()


def test_ops_leave_out_what_could_not_be_loaded() -> None:
    assert [op.name for op in Registry([make()], [FAILURE]).ops()] == ["square"]


def test_failure_of_a_whole_module_is_no_op() -> None:
    assert Registry([], [OpLoadError("why", source="module 'ops.py'", cause="IMPORT_FAILED")]).infos() == []
