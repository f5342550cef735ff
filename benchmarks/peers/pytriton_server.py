"""PyTriton: Triton's server with a function in Python behind it, which gets batches of the calls that wait."""

import os
import socket
import sys
import sysconfig

# Triton starts a stub in C++ that wants the shared libpython of this very Python.
os.environ["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")

import numpy as np
from op import tf, vjp
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

LOOPBACK = "127.0.0.1"


@batch
def infer(x: np.ndarray, dy: np.ndarray) -> list:
    """Returns the output and the gradient of x."""
    return [tensor.numpy() for tensor in vjp(tf.constant(x), tf.constant(dy))]


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as opened:
        opened.bind((LOOPBACK, 0))
        return opened.getsockname()[1]


tensors = {name: Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in ("x", "dy", "y", "dx")}
config = TritonConfig(
    grpc_address=LOOPBACK,
    grpc_port=int(sys.argv[1]),
    http_address=LOOPBACK,
    http_port=free_port(),
    metrics_address=LOOPBACK,
    metrics_port=free_port(),
)
with Triton(config=config) as triton:
    triton.bind(
        "op",
        infer,
        inputs=[tensors["x"], tensors["dy"]],
        outputs=[tensors["y"], tensors["dx"]],
        config=ModelConfig(max_batch_size=1024, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
    )
    triton.serve()
