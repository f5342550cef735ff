"""Gradserve's client: call ops on a remote server, forward and backward, with numpy arrays.

Importing this package imports numpy, ml_dtypes, protobuf and grpcio, and no machine-learning framework.
"""

from gradserve import aio, errors
from gradserve.client import Client
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult, VjpResult
from gradserve.signature import Signature, TensorSpec

__all__ = ["Client", "ForwardResult", "OpInfo", "Signature", "TensorSpec", "VjpResult", "aio", "errors"]
