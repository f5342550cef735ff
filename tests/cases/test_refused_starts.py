"""Public cases of ops that break their contract in a way that a trace shows: the start stops, or goes on without."""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cases.arrays import assert_same_bits, f32
from tests.support.processes import run_server

from gradserve import Client
from gradserve.errors import Code, OpContractError
from gradserve_server.testing import RunningServer


class Fault(NamedTuple):
    """A module of a bad op, which has its name, and an op ``healthy``; and what is said of the bad one."""

    case: str
    op: str
    cause: str
    says: tuple[str, ...]

    @property
    def module(self) -> Path:
        return Path(__file__).parent / "ops" / "refused" / f"{self.op}.py"


def id_of(fault: Fault) -> str:
    return f"{fault.case}_{fault.op}"


FAULTS = [
    Fault("A05", "no_gradients", "GRADIENT_COUNT_MISMATCH", ("wanted 1, got 0",)),
    Fault("A05", "two_gradients", "GRADIENT_COUNT_MISMATCH", ("wanted 1, got 2",)),
    Fault("A09", "variable_without_rule", "TRACE_FAILED", ("variables",)),
    Fault("A12", "variable_in_a_branch", "TRACE_FAILED", ("AttributeError", "pass the value of a variable")),
    Fault("A13", "new_variable", "TRACE_FAILED", ("variable",)),
    Fault("A33", "wider_gradient", "GRADIENT_DTYPE_MISMATCH", ("'x'", "wanted float16", "got float32")),
    Fault("A34", "number_for_a_vector", "GRADIENT_SHAPE_MISMATCH", ("'slope'", "wanted (2,)", "got ()")),
    Fault("A42", "ragged_input", "UNSUPPORTED_KIND", ("'rows'", "RaggedTensorSpec")),
    Fault("A42", "ragged_output", "UNSUPPORTED_KIND", ("'output'", "RaggedTensor")),
    Fault("A43", "sparse_input", "UNSUPPORTED_KIND", ("'cells'", "SparseTensorSpec")),
    Fault("A43", "sparse_output", "UNSUPPORTED_KIND", ("'output'", "SparseTensor")),
    Fault("A46", "numpy_under_xla", "WARM_UP_FAILED", ("XLA", "PyFunc")),
    Fault("A70", "branching_on_input", "TRACE_FAILED", ("Python `bool`",)),
    Fault("A74", "operator_output", "UNSUPPORTED_KIND", ("'output'", "LinearOperatorLowRankUpdate")),
    Fault("A75", "silu_per_column", "GRADIENT_SHAPE_MISMATCH", ("'beta'", "wanted (None,)", "got ()")),
]
VARIATIONS = [
    Fault("A05", "two_gradients_beside_an_integer", "GRADIENT_COUNT_MISMATCH", ("wanted 1, got 2",)),
    Fault("A05", "two_gradients_beside_a_variable", "GRADIENT_COUNT_MISMATCH", ("wanted 1, got 2",)),
    Fault("A05", "two_gradients_in_a_graph", "GRADIENT_COUNT_MISMATCH", ("wanted 1, got 2",)),
    Fault("A05", "two_gradients_of_three", "GRADIENT_COUNT_MISMATCH", ("wanted 3, got 2", "'scale'")),
    Fault("own", "assigns_a_variable", "ASSIGNS_VARIABLE", ("AssignAddVariableOp", "stateful=True")),
    Fault("own", "unreported_variable", "UNREPORTED_VARIABLE", ("float32 (2,)", "op(variables=[variable])")),
    Fault("own", "raises_in_a_graph", "TRACE_FAILED", ("AttributeError", "no_such_attribute")),
]
each_public_fault = pytest.mark.parametrize("fault", FAULTS, ids=id_of)
Starts = Mapping[Fault, "Future[subprocess.CompletedProcess[str]]"]


@pytest.fixture(params=[*FAULTS, *VARIATIONS], ids=id_of)
def fault(request: pytest.FixtureRequest) -> Fault:
    return request.param


@pytest.fixture(scope="module")
def starts() -> Iterator[Starts]:
    """Starts with each bad module, two at a time, since each takes seconds."""
    with ThreadPoolExecutor(2) as pool:
        yield {fault: pool.submit(run_server, fault.module) for fault in FAULTS}


@pytest.fixture
def skipping(serve: Callable[..., RunningServer], fault: Fault) -> Iterator[Client]:
    """A client of a server that was told to start without the bad op of a module."""
    with serve(fault.module, bad_ops="skip").client() as client:
        yield client


@each_public_fault
def test_bad_op_stops_the_start_with_one_message(starts: Starts, fault: Fault) -> None:
    ended = starts[fault].result()
    assert ended.returncode == 2
    messages = [line for line in ended.stderr.splitlines() if line.startswith("gradserve-server: ")]
    assert len(messages) == 1
    for part in (f"module '{fault.module}'", f"op '{fault.op}'", fault.cause, *fault.says):
        assert part in messages[0]
    assert "Traceback" not in ended.stderr


def test_skipped_op_is_listed_as_failed(skipping: Client, fault: Fault) -> None:
    infos = {info.name: info for info in skipping.ops()}
    assert sorted(infos) == sorted([fault.op, "healthy"])
    assert (infos["healthy"].failure, infos[fault.op].signatures) == ("", {})
    for part in (fault.cause, *fault.says):
        assert part in infos[fault.op].failure


@pytest.mark.parametrize("inputs", [{"x": f32(1)}, f32(1), {"x": 1.0}], ids=["named", "bare", "number"])
def test_call_of_a_skipped_op_is_refused(skipping: Client, fault: Fault, inputs: object) -> None:
    for call in (skipping.forward, skipping.vjp):
        with pytest.raises(OpContractError) as caught:
            call(fault.op, inputs)
        assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "OP_NOT_LOADED")
        assert caught.value.facts == {"op": fault.op, "cause": fault.cause}
        for part in (f"op '{fault.op}'", *fault.says):
            assert part in str(caught.value)
        assert str(fault.module.parent) not in str(caught.value)


def test_other_op_of_the_module_answers(skipping: Client, fault: Fault) -> None:
    with pytest.raises(OpContractError):
        skipping.vjp(fault.op, {})
    result = skipping.vjp("healthy", f32(1, 2), f32(1, 10))
    assert_same_bits(result.output, f32(3, 6))
    assert_same_bits(result.gradient, f32(3, 30))
