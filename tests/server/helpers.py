"""Shortcuts that the tests of the server share: ops traced from a function, and arrays."""

import re
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from gradserve_server.autodiff.tracing import trace
from gradserve_server.ops import Op, OpDefinition, op
from gradserve_server.sources import python_module

VECTOR = tf.TensorSpec([None], tf.float32)
ANY = tf.TensorSpec(None, tf.float32)
SCALAR = tf.TensorSpec([], tf.float32)
INDEX = tf.TensorSpec([], tf.int32)


def trace_all(function: Callable[..., Any], name: str = "probe", device: str = "cpu:0", **declared: Any) -> list[Op]:
    """Declares a function as an op and traces each of its signatures."""
    return trace(op(name, **declared)(function), source="module 'probe.py'", device=device)


def trace_one(function: Callable[..., Any], **declared: Any) -> Op:
    """Declares a function as an op of one signature and traces it."""
    (traced,) = trace_all(function, **declared)
    return traced


def load_module(module: str) -> list[OpDefinition]:
    """Imports a module and returns the ops that it defines."""
    return python_module.ops_of(python_module.import_module(module), module)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def one() -> np.ndarray:
    """Stands for ones in every element of an output."""
    return np.float32(1.0)[...]


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


def has_path_or_traceback(text: str) -> bool:
    return re.search(r"/[\w.-]+/[\w.-]+|Traceback|\n", text) is not None
