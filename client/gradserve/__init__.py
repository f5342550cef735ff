"""Gradserve's client: call ops on a remote server, forward and backward, with numpy arrays.

Importing this package imports numpy, ml_dtypes, protobuf and grpcio, and no machine-learning framework.
"""

from gradserve import aio, errors
from gradserve.client import Client
from gradserve.gradient_check import Finding, GradientCheck, Line, Profile
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult, HvpResult, JacobianResult, JvpResult, VjpResult
from gradserve.signature import Signature, TensorSpec

__all__ = [
    "Client",
    "Finding",
    "ForwardResult",
    "GradientCheck",
    "HvpResult",
    "JacobianResult",
    "JvpResult",
    "Line",
    "OpInfo",
    "Profile",
    "Signature",
    "TensorSpec",
    "VjpResult",
    "aio",
    "errors",
]
