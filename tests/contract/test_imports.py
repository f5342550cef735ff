"""The two packages and the arrow between them: parsed from the sources, and seen in fresh processes."""

import json
import subprocess
import sys

import pytest
from tests.contract.import_rules import CLIENT_ROOMS_OF_EXTRAS, ROOT, breaches, modules_of, names_imported

CLIENT, SERVER = "client/gradserve", "server/gradserve_server"
MODULES = [(tree, module) for tree in (CLIENT, SERVER) for module in modules_of(tree)]
BREACHES = {(tree, module): breaches(tree, module, modules_of(tree)[module]) for tree, module in MODULES}
"""Found while tests are collected: ``ast.parse`` of Python 3.11.7 fails at times while another thread parses, as TensorFlow does."""


@pytest.mark.parametrize(("tree", "module"), MODULES, ids=["/".join(part) for part in MODULES])
def test_module_breaks_no_import_rule(tree: str, module: str) -> None:
    assert BREACHES[tree, module] == []


def test_modules_of_finds_both_packages_whole() -> None:
    assert {"client.py", "v1/tensor_pb2.py"} <= set(modules_of(CLIENT))
    assert {"app.py", "service.py", "autodiff/vjp.py", "scheduling/device.py"} <= set(modules_of(SERVER))


@pytest.mark.parametrize(
    ("tree", "module", "source", "breach"),
    [
        (CLIENT, "client.py", "import gradserve_server", "client.py imports gradserve_server"),
        (CLIENT, "autodiff/torch.py", "from gradserve_server import ops", "imports gradserve_server.ops"),
        (CLIENT, "client.py", "import tensorflow as tf", "client.py imports tensorflow"),
        (CLIENT, "autodiff/__init__.py", "import torch", "imports torch"),
        (CLIENT, "client.py", "from google import cloud", "imports google.cloud"),
        (CLIENT, "client.py", "def f():\n    import requests", "imports requests"),
        (CLIENT, "client.py", "if TYPE_CHECKING:\n    from jax import Array", "imports jax.Array"),
        (CLIENT, "client.py", "import importlib\nimportlib.import_module('torch')", "imports torch"),
        (SERVER, "service.py", "import tensorflow", "service.py imports tensorflow"),
        (SERVER, "scheduling/queue.py", "from tensorflow import function", "imports tensorflow.function"),
        (SERVER, "service.py", "import prometheus_client", "service.py imports prometheus_client"),
        (SERVER, "app.py", "from prometheus_client import Counter", "imports prometheus_client.Counter"),
        (SERVER, "ops.py", "import tensorflow as tf\ntf.GradientTape()", "ops.py names GradientTape"),
        (SERVER, "sources/a.py", "from tensorflow import GradientTape as T", "sources/a.py names GradientTape"),
        (SERVER, "service.py", "from gradserve_server.app import App", "imports gradserve_server.app.App"),
        (SERVER, "service.py", "from gradserve_server import app", "imports gradserve_server.app"),
        (SERVER, "service.py", "from . import app", "imports gradserve_server.app"),
        (SERVER, "interceptors/calls.py", "from ..app import App", "imports gradserve_server.app.App"),
    ],
)
def test_breaches_of_a_planted_violation_names_it(tree: str, module: str, source: str, breach: str) -> None:
    (found,) = breaches(tree, module, source)
    assert found.endswith(breach)


@pytest.mark.parametrize(
    ("tree", "module", "source"),
    [
        (CLIENT, "autodiff/torch.py", "import torch"),
        (CLIENT, "client.py", "import os, grpc, numpy\nfrom google.protobuf import any_pb2\nfrom gradserve import aio"),
        (SERVER, "autodiff/vjp.py", "import tensorflow as tf\ntf.GradientTape()"),
        (SERVER, "scheduling/device.py", "import tensorflow as tf"),
        (SERVER, "metrics.py", "import prometheus_client"),
        (SERVER, "testing.py", "from gradserve_server.app import App"),
        (SERVER, "service.py", "# tensorflow, GradientTape\ntext = 'import tensorflow, GradientTape'"),
    ],
)
def test_breaches_of_what_is_allowed_is_empty(tree: str, module: str, source: str) -> None:
    assert breaches(tree, module, source) == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a.b as c, d", {"a.b", "d"}),
        ("from a.b import c, d", {"a.b.c", "a.b.d"}),
        ("from . import x\nfrom .y import z\nfrom .. import w", {"p.q.x", "p.q.y.z", "p.w"}),
        ("__import__('a')", {"a"}),
    ],
)
def test_names_imported_resolves_every_form(source: str, names: set[str]) -> None:
    assert set(names_imported(source, "p.q")) == names


def run_python(code: str) -> str:
    """Runs code in a new process, warnings as errors, and returns what it printed."""
    command = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def packages_loaded_by(code: str) -> set[str]:
    """Returns the top-level packages from outside the standard library that code loads in a new process."""
    report = "import json, sys; before = set(sys.modules)\n{}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    loaded = {name.split(".")[0] for name in json.loads(run_python(report.format(code)))}
    return loaded - set(sys.stdlib_module_names)


def test_import_of_the_client_loads_its_own_needs_and_no_framework() -> None:
    left_out = ("__init__.py", *CLIENT_ROOMS_OF_EXTRAS)
    modules = [f"gradserve.{path.stem}" for path in sorted((ROOT / CLIENT).glob("*.py")) if path.name not in left_out]
    loaded = packages_loaded_by(f"import gradserve, {', '.join(modules)}")
    assert {"gradserve", "numpy", "ml_dtypes", "google", "grpc"} <= loaded
    of_grpc = packages_loaded_by("import grpc")  # it looks for its companions (health, reflection) by itself
    assert loaded - of_grpc <= {"gradserve", "numpy", "ml_dtypes", "google", "grpc_status", "typing_extensions"}
    assert not loaded & {"tensorflow", "torch", "jax", "keras", "prometheus_client", "gradserve_server"}


def test_packages_loaded_by_sees_what_is_loaded() -> None:
    assert "prometheus_client" in packages_loaded_by("import gradserve_server.metrics")


def test_import_of_the_op_decorator_loads_no_tensorflow() -> None:
    assert "tensorflow" not in packages_loaded_by("import gradserve_server")


@pytest.mark.parametrize(
    "module",
    [
        "registry",
        "status",
        "metrics",
        "service",
        "evaluation",
        "requests",
        "checking.checker",
        "telemetry",
        "health",
        "config",
        "app",
    ],
)
def test_server_module_imports_without_tensorflow(module: str) -> None:
    blocked = "import sys; sys.modules['tensorflow'] = None; sys.modules['keras'] = None\n"
    run_python(f"{blocked}import gradserve_server.{module}")


def test_server_module_that_needs_tensorflow_fails_where_it_is_blocked() -> None:
    with pytest.raises(AssertionError, match="import of tensorflow halted"):
        run_python("import sys; sys.modules['tensorflow'] = None\nimport gradserve_server.scheduling.device")
