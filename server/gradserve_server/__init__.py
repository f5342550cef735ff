"""Gradserve's server: hosts TensorFlow ops and evaluates them forward and backward. Authors of ops import ``op``."""

from gradserve_server.ops import OpDefinition, op

__all__ = ["OpDefinition", "op"]
