"""The commands ``gradserve jvp``, ``hvp``, ``jacobian`` and ``check``, against a real server."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradserve.cli import main
from gradserve_server.testing import RunningServer

OPS = Path(__file__).with_name("ops_seeded.py")
WRONG = Path(__file__).parents[1] / "server" / "ops_wrong.py"
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


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()[1:]]


@pytest.mark.parametrize("tangent", ["v=5", "v:x=5"])
def test_jvp_prints_the_tangent(run: Run, tangent: str) -> None:
    status, out, _ = run("jvp", "square_with_grad", "x=3", tangent)
    assert (status, rows(out)[1]) == (0, ["tangent", "output", "float32", "()", "30."])


def test_jvp_with_v_for_several_inputs_names_what_to_write(run: Run) -> None:
    status, _, err = run("jvp", "multiply_with_grad", "x=3", "y=2", "v=1")
    assert status == 2
    assert "wanted v:x=VALUE, v:y=VALUE" in err


def test_hvp_prints_products_and_what_has_none(run: Run) -> None:
    status, out, _ = run("hvp", "multiply_with_grad", "x=3", "y=2", "v:x=1", "dy=10")
    assert status == 0
    assert rows(out)[1:] == [["product", "x", "none", "(unconnected)"], ["product", "y", "float32", "()", "10."]]


def test_jacobian_prints_one_for_each_pair(run: Run) -> None:
    status, out, _ = run("jacobian", "multiply_with_grad", "x=[1,2]", "y=3", "--differentiate", "y")
    assert (status, rows(out)[1]) == (0, ["jacobian", "output", "by", "y", "float32", "(2,)", "[1.,", "2.]"])


def test_jacobian_as_json_is_nested_by_output_and_input(run: Run) -> None:
    _, out, _ = run("jacobian", "multiply_with_grad", "x=[1,2]", "y=3", "--json")
    printed = json.loads(out)
    assert printed["jacobians"]["output"]["x"] == {"dtype": "float32", "shape": [2, 2], "value": [[3, 0], [0, 3]]}
    assert printed["status"] == {"output": {"x": "dense", "y": "dense"}}


def test_derivatives_are_written_as_npy(run: Run, tmp_path: Path) -> None:
    run("jvp", "square_with_grad", "x=3", "v=1", "--output", str(tmp_path))
    run("hvp", "square_with_grad", "x=3", "v=1", "--output", str(tmp_path))
    run("jacobian", "square_with_grad", "x=3", "--output", str(tmp_path))
    files = {"output.tangent.npy": 6, "x.product.npy": 2, "output by x.jacobian.npy": 6}
    assert {name: np.load(tmp_path / name).item() for name in files} == files


@pytest.mark.parametrize(
    ("command", "argument"), [("forward", "v=1"), ("vjp", "v=1"), ("jacobian", "dy=1"), ("check", "dy=1")]
)
def test_command_refuses_tensors_of_a_kind_that_it_does_not_take(run: Run, command: str, argument: str) -> None:
    status, _, err = run(command, "square_with_grad", "x=3", argument)
    assert status == 2
    assert f"{command} takes none" in err


def test_seed_fills_the_input_that_takes_it(run: Run, serve: Callable[..., RunningServer]) -> None:
    target = serve(OPS).target
    _, by_option, _ = run("forward", "dropout", "x=[1,2,3,4]", "--seed", "7", "--json", target=target)
    _, by_input, _ = run("forward", "dropout", "x=[1,2,3,4]", "seed=[7,0]", "--json", target=target)
    assert json.loads(by_option)["outputs"] == json.loads(by_input)["outputs"]


def test_check_of_a_right_op_prints_a_line_a_test(run: Run) -> None:
    status, out, _ = run("check", "square_with_grad")
    title, header, *lines = out.splitlines()
    assert status == 0
    assert title.startswith("square_with_grad version 1, serving_default: pass: ")
    assert header.split() == ["verdict", "test", "input", "element", "wanted", "got", "tolerance"]
    assert [line.split()[1] for line in lines] == [
        "finite",
        "elements",
        "adjoint",
        "taylor",
        "own_derivative",
        "linearity",
    ]


def test_check_of_a_wrong_op_fails_and_says_where(run: Run, serve: Callable[..., RunningServer]) -> None:
    status, out, _ = run("check", "forgetful", target=serve(WRONG, check_gradients="off").target)
    assert status == 1
    assert "forgetful version 1, serving_default: fail: input 'x', element" in out


def test_check_of_all_ops_goes_on_where_one_cannot_be_checked(run: Run, serve: Callable[..., RunningServer]) -> None:
    status, out, _ = run("check", "--json", target=serve(WRONG, check_gradients="off").target)
    verdicts = {name.split()[0]: check["verdict"] for name, check in json.loads(out).items()}
    assert verdicts == {
        "forgetful": "fail",
        "forgetful_and_narrow": "fail",
        "right": "pass",
        "rounded": "departs",
        "noisy": "unchecked",
        "whole": "unchecked",
    }
    assert status == 1


def test_check_draws_a_picture(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "spike.png"
    status, _, err = run("check", "spike", "--plot", str(file), "--line", "v=-2:2:21")
    assert (status, err) == (0, f"wrote {file}\n")
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("line", ["1", "a:b", "x=1:2:c", "x="])
def test_check_with_a_line_of_another_form_is_bad_usage(run: Run, tmp_path: Path, line: str) -> None:
    status, _, err = run("check", "spike", "--plot", str(tmp_path / "a.png"), "--line", line)
    assert status == 2
    assert "wanted [INPUT=]LOW:HIGH[:POINTS]" in err


def test_check_draws_no_picture_of_all_ops(run: Run, tmp_path: Path) -> None:
    status, _, err = run("check", "--plot", str(tmp_path / "a.png"))
    assert status == 2
    assert "name the op" in err


def test_check_takes_a_line_that_begins_with_a_minus(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "square.svg"
    assert run("check", "square_with_grad", "--plot", str(file), "--line", "-1:1:5")[0] == 0
    assert "<svg" in file.read_text()


def test_vjp_stacked_pulls_back_each_row(run: Run) -> None:
    _, out, _ = run("vjp", "square_with_grad", "x=[1,2]", "dy=[[1,0],[0,1],[1,1]]", "--stacked", "--json")
    assert json.loads(out)["input_gradients"]["x"]["value"] == [[2, 0], [0, 4], [2, 4]]


def test_check_of_a_seeded_op_draws_the_other_inputs(run: Run, serve: Callable[..., RunningServer]) -> None:
    status, out, _ = run("check", "dropout", "--seed", "7", target=serve(OPS).target)
    assert (status, "dropout version 1, serving_default: pass" in out) == (0, True)
