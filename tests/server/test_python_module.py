"""Python modules as sources of ops: by path, by dotted name, with neighbours, and what is refused."""

import sys
from pathlib import Path

import pytest
from tests.server.helpers import load_module

from gradserve_server.ops import OpLoadError
from gradserve_server.testing import running_server

ONE = """
@op("same", version={version}, inputs={{"x": tf.TensorSpec(None, tf.float32)}})
def same(x):
    return 2.0 * x
"""
HEAD = "import tensorflow as tf\nfrom gradserve_server import op\nX = {'x': tf.TensorSpec(None, tf.float32)}\n"


def an_op(name: str) -> str:
    return f"@op(inputs=X)\ndef {name}(x):\n    return x\n"


def names_in(module: Path | str) -> list[str]:
    return [definition.name for definition in load_module(str(module))]


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + text)
        return path

    return write


def test_load_by_path_finds_ops_in_their_order(write) -> None:
    assert names_in(write("by_path.py", an_op("zeta") + an_op("alpha"))) == ["zeta", "alpha"]


def test_load_by_dotted_name_in_the_working_directory_finds_ops(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write("pkg_by_name/inner.py", an_op("dotted")).parents[1])
    assert names_in("pkg_by_name.inner") == ["dotted"]


def test_load_by_relative_path_finds_ops(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write("folder/relative.py", an_op("relative")).parents[1])
    assert names_in("folder/relative.py") == ["relative"]


def test_load_of_a_module_that_imports_its_neighbour_works(write) -> None:
    write("neighbour_of_ops.py", "LIMIT = 1.0\n")
    assert names_in(write("with_neighbour.py", "from neighbour_of_ops import LIMIT\n" + an_op("limited"))) == [
        "limited"
    ]


def test_load_of_two_names_for_one_op_finds_it_once(write) -> None:
    assert names_in(write("aliased.py", an_op("once") + "again = once\n")) == ["once"]


def test_load_leaves_out_ops_that_the_module_imported(write) -> None:
    write("home_of_ops.py", an_op("at_home"))
    assert names_in(write("imports_ops.py", "from home_of_ops import at_home\n" + an_op("own"))) == ["own"]


def test_load_keeps_ops_that_a_factory_elsewhere_made(write) -> None:
    write("op_factory.py", "def make(name):\n    return op(name, inputs=X)(lambda x: x)\n")
    assert names_in(write("uses_factory.py", "from op_factory import make\nmade = make('made')\n")) == ["made"]


def test_load_of_two_files_of_the_same_name_gives_each_its_own(write) -> None:
    first, second = write("first/same.py", an_op("one")), write("second/same.py", an_op("two"))
    assert (names_in(first), names_in(second), names_in(first)) == (["one"], ["two"], ["one"])


def test_load_of_a_file_named_like_an_installed_module_takes_the_file(write) -> None:
    assert names_in(write("json.py", an_op("not_json"))) == ["not_json"]


@pytest.mark.parametrize("statement", ["raise RuntimeError('why\\n it fails')", "raise SystemExit('why it fails')"])
def test_load_of_a_module_that_raises_names_module_and_cause_in_one_line(write, statement: str) -> None:
    path = write("raises.py", statement)
    with pytest.raises(OpLoadError) as raised:
        load_module(str(path))
    assert raised.value.cause == "IMPORT_FAILED"
    assert str(path) in str(raised.value)
    assert str(raised.value).endswith("why it fails; --traceback shows where")


@pytest.mark.parametrize("module", ["/nowhere/ops.py", "no_such_module_at_all", "ops.missing.name"])
def test_load_of_what_is_not_there_is_an_import_failure(module: str) -> None:
    with pytest.raises(OpLoadError) as raised:
        load_module(module)
    assert (raised.value.cause, raised.value.source) == ("IMPORT_FAILED", f"module {module!r}")


def test_load_of_a_syntax_error_is_an_import_failure(write) -> None:
    with pytest.raises(OpLoadError, match="import failed with SyntaxError"):
        load_module(str(write("syntax.py", "def broken(:\n")))


def test_load_of_an_error_that_cannot_be_shown_names_its_class(write) -> None:
    text = "class Shy(Exception):\n    def __str__(self):\n        raise ValueError\nraise Shy\n"
    with pytest.raises(OpLoadError, match="import failed with Shy"):
        load_module(str(write("shy.py", text)))


def test_load_of_a_module_without_ops_says_how_to_make_one(write) -> None:
    with pytest.raises(OpLoadError, match="decorate a function") as raised:
        load_module(str(write("empty.py", "")))
    assert raised.value.cause == "NO_OPS"


def test_load_of_a_bad_declaration_is_an_import_failure_with_its_text(write) -> None:
    with pytest.raises(OpLoadError, match="op 'bad': version must be an integer of at least 1, got 0"):
        load_module(str(write("bad.py", "@op('bad', inputs=X, version=0)\ndef bad(x):\n    return x\n")))


def test_load_finds_an_op_whose_python_name_is_used_again(write) -> None:
    path = write("versions.py", "".join(ONE.format(version=version) for version in (1, 2)))
    assert [definition.version for definition in load_module(str(path))] == [1, 2]


def test_two_ops_of_one_name_in_one_module_stop_the_start(write) -> None:
    path = write("twice.py", ONE.format(version=1) * 2)
    with pytest.raises(OpLoadError, match="is registered twice") as raised, running_server(str(path)):
        pass
    assert (raised.value.name, raised.value.cause) == ("same", "DUPLICATE_NAME")


def test_op_that_exits_while_it_is_traced_stops_the_start(write) -> None:
    path = write("exits.py", ONE.format(version=1).replace("return 2.0 * x", "raise SystemExit(3)"))
    with pytest.raises(OpLoadError, match="SystemExit") as raised, running_server(str(path)):
        pass
    assert raised.value.cause == "TRACE_FAILED"


def test_inputs_whose_names_join_to_the_same_stop_the_start(write) -> None:
    inputs = '{"x": {"a/b": tf.TensorSpec([]), "a": {"b": tf.TensorSpec([])}}}'
    path = write("joined.py", ONE.format(version=1).replace('{"x": tf.TensorSpec(None, tf.float32)}', inputs))
    with pytest.raises(OpLoadError, match="a name of its own") as raised, running_server(str(path)):
        pass
    assert raised.value.cause == "BAD_INPUTS"


def test_python_code_under_xla_stops_the_start(write) -> None:
    body = "return tf.numpy_function(lambda a: a * 2, [x], tf.float32)"
    path = write("compiled.py", ONE.format(version="1, jit_compile=True").replace("return 2.0 * x", body))
    with pytest.raises(OpLoadError, match="XLA cannot compile it") as raised, running_server(str(path)):
        pass
    assert raised.value.cause == "WARM_UP_FAILED"
