"""Settings: the command line beats the environment, that beats the file, that beats the default; the rest is refused."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import run_server

from gradserve_server.cli import main
from gradserve_server.config import Settings, load_settings, split_pair


@pytest.fixture(autouse=True)
def _restored_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes the settings of whoever runs the tests away, and puts back what ``main`` sets for its whole process."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    start_method = multiprocessing.get_start_method(allow_none=True)
    for name in list(os.environ):
        if name.startswith("GRADSERVE_"):
            monkeypatch.delenv(name)
    yield
    multiprocessing.set_start_method(start_method, force=True)


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return str(path)

    return write


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns the last line of what a start with that command line printed, having checked its exit status."""
    try:
        status = main(list(arguments))
    except SystemExit as error:  # argparse exits by itself
        status = error.code
    printed = capsys.readouterr().err
    assert status == 2
    assert "Traceback" not in printed
    return printed.splitlines()[-1]


def test_settings_without_any_are_the_defaults() -> None:
    settings = load_settings([])
    assert (settings.host, settings.port, settings.metrics_port) == ("127.0.0.1", 50051, 9464)
    assert (settings.modules, settings.device, settings.bad_ops, settings.reflection) == ([], "auto", "stop", True)


def test_settings_take_the_file_over_the_default(write) -> None:
    settings = load_settings(
        ["--config", write('port = 1\nmodules = ["a.py"]\nbad_ops = "skip"\nreflection = false\n')]
    )
    assert (settings.port, settings.modules, settings.bad_ops, settings.reflection) == (1, ["a.py"], "skip", False)


def test_settings_take_the_environment_over_the_file(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSERVE_PORT", "2")
    settings = load_settings(["--config", write("port = 1\nmetrics_port = 1\n")])
    assert (settings.port, settings.metrics_port) == (2, 1)


def test_settings_take_the_command_line_over_all(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSERVE_PORT", "2")
    monkeypatch.setenv("GRADSERVE_HOST", "::1")
    settings = load_settings(["--config", write("port = 1\nmetrics_port = 1\n"), "--port", "3"])
    assert (settings.port, settings.host, settings.metrics_port) == (3, "::1", 1)


def test_settings_take_the_default_given_on_the_command_line_over_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("GRADSERVE_PORT", "2")
    assert load_settings(["--port", "50051"]).port == 50051


def test_settings_read_the_file_that_the_environment_names(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSERVE_CONFIG", write("port = 4\n"))
    assert load_settings([]).port == 4


def test_settings_read_the_file_of_the_command_line_over_that_of_the_environment(write, monkeypatch) -> None:
    monkeypatch.setenv("GRADSERVE_CONFIG", "/no/such/file.toml")
    assert load_settings(["--config", write("port = 5\n")]).port == 5


def test_settings_read_modules_from_the_environment_between_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSERVE_MODULES", "a.py, pkg.b")
    assert load_settings([]).modules == ["a.py", "pkg.b"]


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["a.py", "pkg.b", "--port", "1"], "modules", ["a.py", "pkg.b"]),
        (["--port", "1", "a.py"], "modules", ["a.py"]),
        (["--no-reflection"], "reflection", False),
        (["--reflection"], "reflection", True),
        (["--grace-seconds", "0.5"], "grace_seconds", 0.5),
        (["--gpu-memory-limit-bytes", "1000"], "gpu_memory_limit_bytes", 1000),
        (["--log-format=console"], "log_format", "console"),
        (["--saved-model", "a=/x", "--saved-model", "b=y"], "saved_models", ["a=/x", "b=y"]),
        (["--keras-model", "a=x.keras"], "keras_models", ["a=x.keras"]),
        (["--custom-objects", "a.py", "--custom-objects", "b"], "custom_objects", ["a.py", "b"]),
        (["--gradient", "a=exact", "--gradient", "b=surrogate"], "gradients", ["a=exact", "b=surrogate"]),
        (["--load-library", "a.so"], "load_libraries", ["a.so"]),
        (["--traceback"], "traceback", True),
    ],
)
def test_command_line_sets_each_kind_of_setting(arguments: list[str], field: str, value: Any) -> None:
    assert getattr(load_settings(arguments), field) == value


def test_unknown_option_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--bogus") == "gradserve-server: error: unrecognized arguments: --bogus"


def test_abbreviated_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--metrics-p" in refusal(capsys, "--metrics-p", "1")


def test_unknown_variable_is_refused_by_name(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSERVE_PROT", "1")
    line = refusal(capsys)
    assert line.startswith("gradserve-server: no such settings: GRADSERVE_PROT; wanted some of ")
    assert "GRADSERVE_PORT" in line


@pytest.mark.parametrize("text", ["prot = 1\n", "[server]\nport = 1\n"])
def test_unknown_key_of_the_file_is_refused_by_name(capsys, write, text: str) -> None:
    line = refusal(capsys, "--config", write(text))
    assert line.startswith("gradserve-server: bad settings: ")
    assert text.strip("[").split()[0].strip("]") in line


def test_file_that_is_no_toml_is_refused(capsys, write) -> None:
    assert refusal(capsys, "--config", write("port = = 1")).startswith("gradserve-server: ")


def test_file_that_is_not_there_is_refused_by_name(capsys) -> None:
    assert refusal(capsys, "--config", "/no/such.toml") == "gradserve-server: config: no such file: /no/such.toml"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "x"], "port: Input should be a valid integer"),
        (["--port", "65536"], "port: Input should be less than or equal to 65535, got '65536'"),
        (["--metrics-port", "-1"], "metrics_port: Input should be greater than or equal to 0"),
        (["--max-message-bytes", "0"], "max_message_bytes: Input should be greater than 0"),
        (["--max-message-bytes", "2147483648"], "max_message_bytes: Input should be less than 2147483648"),
        (["--grace-seconds", "-1"], "grace_seconds: "),
        (["--grace-seconds", "nan"], "grace_seconds: "),
        (["--gpu-memory-limit-bytes", "0"], "gpu_memory_limit_bytes: "),
        (["--bad-ops", "maybe"], "bad_ops: "),
        (["--log-level", "loud"], "log_level: "),
        (["--saved-model", "folder"], "saved_models: wanted NAME=VALUE"),
        (["--saved-model", "a="], "saved_models: wanted NAME=VALUE"),
        (["--keras-model", "1st=a.keras"], "keras_models: wanted NAME=VALUE"),
        (["--gradient", "a=sure"], "gradients: wanted exact, surrogate, unchecked after the name"),
    ],
)
def test_bad_value_is_refused_with_setting_and_value(capsys, arguments: list[str], said: str) -> None:
    line = refusal(capsys, *arguments)
    assert said in line
    assert arguments[1] in line


@pytest.mark.parametrize(
    ("name", "value"), [("GRADSERVE_PORT", "x"), ("GRADSERVE_DEVICE", "tpu"), ("GRADSERVE_BAD_OPS", "no")]
)
def test_bad_value_of_a_variable_is_refused_in_one_line(capsys, monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    line = refusal(capsys)
    assert name.removeprefix("GRADSERVE_").lower() in line


def test_server_without_modules_or_models_is_refused_in_one_line(capsys) -> None:
    line = refusal(capsys, "--custom-objects", "layers.py")
    assert line.startswith("gradserve-server: modules: wanted at least one path that ends in .py, or dotted name")
    assert "--saved-model NAME=DIR or --keras-model NAME=FILE.keras" in line


def test_settings_read_models_from_the_environment_between_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSERVE_SAVED_MODELS", "a=/x, b=y=z")
    monkeypatch.setenv("GRADSERVE_GRADIENTS", "a=exact")
    settings = load_settings([])
    assert (settings.saved_models, settings.gradients) == (["a=/x", "b=y=z"], ["a=exact"])
    assert [split_pair(text) for text in settings.saved_models] == [("a", "/x"), ("b", "y=z")]


def test_settings_read_models_from_the_file(write) -> None:
    settings = load_settings(["--config", write('keras_models = ["a=x.keras"]\ncustom_objects = ["layers.py"]\n')])
    assert (settings.keras_models, settings.custom_objects) == (["a=x.keras"], ["layers.py"])


def test_several_bad_values_are_told_at_once(capsys) -> None:
    line = refusal(capsys, "--port", "x", "--metrics-port", "y")
    assert "port: " in line
    assert "metrics_port: " in line


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings([]).port = 1  # type: ignore[misc]  # that it cannot be set is the point


def test_bad_setting_ends_the_process_with_status_2_and_one_line() -> None:
    done = run_server("--grace-seconds", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradserve-server: bad settings: grace_seconds: ")
    assert done.stderr.count("\n") == 1


def test_help_names_every_setting_with_its_default_and_meaning() -> None:
    done = run_server("--help")
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text or name == "modules"
        assert field.description in text
    assert "usage: gradserve-server" in text
    assert "(default: 50051)" in text
