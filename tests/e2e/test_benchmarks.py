"""The benchmarks, each at its smallest, against real servers: that they run and print ratios, not how fast anything is."""

import concurrent.futures
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import EXAMPLES

BENCHMARKS = EXAMPLES.parents[1] / "benchmarks"
TINY = ("--rounds", "1", "--seconds", "0.05")
COMPARING = {
    "vjp_vs_echo.py": (),
    "hosted_ops.py": ("--ops", "2", "--callers", "4"),
    "batch_size.py": ("--rows", "1", "--joined", "1", "4", "--callers", "4"),
    "mixed_load.py": ("--callers", "4"),
    "health_beside_large.py": ("--mib", "1"),
    "beside_slow.py": ("--callers", "4", "--milliseconds", "5"),
}
STAGES = ("stages.py", "--callers", "4")
RATIO = re.compile(r"\d\.\d\d \(\d+\.\d\d to \d+\.\d\d\)")
AT_ONCE = 2
"""How many run at a time: most of each is the start of its servers."""


def run(script: str, *arguments: str) -> str:
    """Runs a benchmark to its end, and returns what it printed."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "GRADSERVE_CHECK_GRADIENTS": "off"}  # which starts sooner
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rounds_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks") / "rounds.json"


@pytest.fixture(scope="module")
def printed(rounds_file: Path) -> Iterator[Callable[[str], str]]:
    """Returns a function that waits for a benchmark, and returns what it printed; all have begun, some at a time."""
    against_echo = ("against_echo.py", "--serial", "12 B", "16 MiB", "--callers", "4", "--json", str(rounds_file))
    commands = [against_echo, *((script, *arguments) for script, arguments in COMPARING.items()), STAGES]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = {command[0]: pool.submit(run, *command, *TINY) for command in commands}
        yield lambda script: running[script].result()


@pytest.mark.parametrize("script", COMPARING)
def test_benchmark_prints_ratios(script: str, printed: Callable[[str], str]) -> None:
    assert RATIO.search(printed(script))


def test_stages_prints_stages_and_threads(printed: Callable[[str], str]) -> None:
    names = ("stage decode", "stage queue", "stage compute", "stage encode", "thread event loop")
    assert [name for name in names if name not in printed("stages.py")] == []


def test_against_echo_is_compared_with_tensorflow_and_drawn(
    printed: Callable[[str], str], rounds_file: Path, tmp_path: Path
) -> None:
    text, picture = printed("against_echo.py"), tmp_path / "picture.png"
    assert RATIO.search(text)
    assert "16 MiB, tf_rpc: refused" in text
    serial, _, together = json.loads(rounds_file.read_text())["results"]
    assert set(serial["rounds"]) == {"unary", "stream", "echo", "tf_rpc"}
    assert together["rounds"]["tf_rpc"][0]["calls_per_second"] > 0
    run("plot.py", str(rounds_file), "--output", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
