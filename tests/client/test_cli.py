"""The command line ``gradserve``, against a real server."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradserve.cli import main
from gradserve_server.testing import RunningServer

OPS = Path(__file__).with_name("ops_slow.py")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(example_server: RunningServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs a command against the example server: exit status, output and errors."""

    def run(*arguments: str, target: str = example_server.target) -> tuple[int, str, str]:
        try:
            status = main([*arguments, "--target", target])
        except SystemExit as error:  # argparse exits by itself
            status = int(error.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_ops_lists_a_line_an_op(run: Run) -> None:
    status, out, _ = run("ops")
    header, *lines = out.splitlines()
    assert status == 0
    assert header.split() == ["op", "version", "gradient", "device", "documentation"]
    assert "square_with_grad" in [line.split()[0] for line in lines]


def test_ops_describes_the_one_that_is_named(run: Run) -> None:
    status, out, _ = run("ops", "reverse_gradient")
    assert status == 0
    assert "    input strength: float32 (), no gradient" in out.splitlines()
    assert "Identity whose gradient is turned around and scaled." in out


def test_ops_as_json_holds_signatures(run: Run) -> None:
    _, out, _ = run("ops", "--json")
    (square,) = [op for op in json.loads(out) if op["name"] == "square_with_grad"]
    assert list(square["signatures"]) == ["serving_default", "float64"]
    assert square["signatures"]["float64"]["inputs"]["x"] == {"dtype": "float64", "shape": None, "differentiable": True}


def test_vjp_prints_output_and_gradient_in_a_table(run: Run) -> None:
    status, out, _ = run("vjp", "square_with_grad", "x=3.0", "dy=2.0")
    assert status == 0
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["output", "output", "float32", "()", "9."],
        ["gradient", "x", "float32", "()", "12."],
    ]


def test_vjp_says_why_there_is_no_gradient(run: Run) -> None:
    _, out, _ = run("vjp", "reverse_gradient", "x=[1,2]", "strength=2")
    assert out.splitlines()[-1].split() == ["gradient", "strength", "none", "(unconnected)"]
    _, out, _ = run("vjp", "reverse_gradient", "x=[1,2]", "strength=2", "--unconnected", "zero")
    assert out.splitlines()[-1].split() == ["gradient", "strength", "float32", "()", "0."]


def test_vjp_of_one_input_leaves_out_the_others(run: Run) -> None:
    _, out, _ = run("vjp", "multiply_with_grad", "x=2", "y=3", "--differentiate", "y", "--json")
    gradients = json.loads(out)["input_gradients"]
    assert gradients == {"y": {"dtype": "float32", "shape": [], "value": 2.0}}


def test_vjp_asks_for_variables(run: Run, serve: Callable[..., RunningServer]) -> None:
    ops = Path(__file__).parents[1] / "cases" / "ops" / "variables.py"
    target = serve(ops).target
    _, out, _ = run("vjp", "scaled", "x=3", "dy=5", "--variables", target=target)
    assert out.splitlines()[-1].split() == ["variable", "gradient", "weight", "float32", "()", "15."]
    assert "  variable weight: float32 ()" in run("ops", "scaled", target=target)[1].splitlines()


def test_forward_takes_nonfinite_numbers_and_prints_them_as_json_strings(run: Run) -> None:
    _, out, _ = run("forward", "square_with_grad", "x=[nan, -inf, 2]", "--json")
    assert json.loads(out)["outputs"]["output"]["value"] == ["NaN", "Infinity", 4.0]


def test_forward_reads_and_writes_npy_files(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1, 2, 3], np.float64))
    status, _, _ = run("forward", "square_with_grad", f"x=@{tmp_path / 'x.npy'}", "--output", str(tmp_path / "out"))
    assert status == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "output.npy"), np.array([1.0, 4.0, 9.0]), strict=True)


def test_vjp_writes_gradients_beside_outputs(run: Run, tmp_path: Path) -> None:
    run("vjp", "multiply_with_grad", "x=[1,2]", "y=[3,4]", "--output", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output.npy", "x.gradient.npy", "y.gradient.npy"]


def test_vjp_names_the_output_of_a_gradient_where_there_are_several(run: Run, serve) -> None:
    target = serve(OPS).target
    arguments = ("vjp", "split", "x=1", "unused=1", "index=4")
    status, _, err = run(*arguments, "dy=1", target=target)
    assert (status, "d:double=VALUE" in err) == (2, True)
    _, out, _ = run(*arguments, "d:triple=2", "--json", target=target)
    assert json.loads(out)["input_gradients"]["x"]["value"] == 6.0


def test_health_tells_of_the_server_and_of_a_service(run: Run) -> None:
    assert run("health")[:2] == (0, "server: SERVING\n")
    assert run("health", "gradserve.v1.GradientService", "--json")[0] == 0
    status, _, err = run("health", "no.such.Service")
    assert (status, err.startswith("gradserve: NOT_FOUND")) == (1, True)


def test_health_of_a_server_that_is_not_there_fails(run: Run) -> None:
    status, _, err = run("health", target="127.0.0.1:1")
    assert (status, err.startswith("gradserve: UNAVAILABLE: ")) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("vjp", "square_with_grad", "x"), "wanted NAME=VALUE"),
        (("vjp", "square_with_grad", "x=[1,2"), "wanted a number, a nested list"),
        (("vjp", "square_with_grad", "x=1", "x=2"), "stands twice"),
        (("vjp", "square_with_grad", "x=@/no/such.npy"), "/no/such.npy"),
        (("vjp",), "OP"),
        (("dance",), "dance"),
    ],
)
def test_bad_usage_exits_with_two(run: Run, arguments: tuple[str, ...], said: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("vjp", "no_such_op", "x=1"), "NOT_FOUND: no such op: got 'no_such_op'"),
        (("vjp", "square_with_grad", "y=1"), "INVALID_ARGUMENT: op 'square_with_grad', inputs: names must be"),
        (("vjp", "square_with_grad", "x=word"), "INVALID_ARGUMENT: op 'square_with_grad', input 'x': Python values"),
        (("forward", "square_with_grad", "x=1", "--version", "9"), "NOT_FOUND: op 'square_with_grad': no such version"),
    ],
)
def test_failed_call_exits_with_one_and_a_line_with_code_text_and_reason(run: Run, arguments, said: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"gradserve: {said}")


def test_options_may_stand_between_the_op_and_its_tensors(run: Run, example_server: RunningServer, capsys) -> None:
    arguments = ["vjp", "square_with_grad", "--target", example_server.target, "x=3", "--json", "dy=2"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["input_gradients"]["x"]["value"] == 12.0
    assert run("vjp", "square_with_grad", "x=3", "--no-such-option")[0] == 2


@pytest.mark.parametrize(
    ("argument", "sent"),
    [
        ("x=nan", b"nan"),
        ("x=3", b"3"),
        ('x="inf"', b"inf"),
        ('x=["say nan to inf"]', [b"say nan to inf"]),
    ],
)
def test_strings_reach_the_op_as_they_are(run: Run, serve, argument: str, sent: object) -> None:
    ops = Path(__file__).parents[1] / "cases" / "ops_b_wire.py"
    _, out, _ = run("forward", "echo_strings", argument, "--json", target=serve(ops).target)
    value = json.loads(out)["outputs"]["output"]["value"]
    assert value == (
        [base64.b64encode(s).decode() for s in sent] if isinstance(sent, list) else base64.b64encode(sent).decode()
    )


def test_forward_refuses_an_output_gradient(run: Run) -> None:
    status, _, err = run("forward", "square_with_grad", "x=3", "dy=1")
    assert (status, "forward takes none" in err) == (2, True)
