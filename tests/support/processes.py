"""Servers in processes of their own, as an operator starts them: for exit statuses, signals and new processes."""

import subprocess
from pathlib import Path

from gradserve_server.testing import ServerProcess, server_command, server_process

__all__ = ["ServerProcess", "run_server", "server_process"]

START_SECONDS = 120


def run_server(*arguments: str | Path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Runs ``gradserve-server`` to its end, for starts that must fail."""
    command = server_command(*map(str, arguments))
    return subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False, env=env)
