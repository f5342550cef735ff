"""Malformed and mutated requests, drawn from a seed: what a hostile or broken caller could send."""

import random
from collections.abc import Callable

import numpy as np
from google.protobuf.message import Message

from gradserve.tensors import encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2

Metadata = list[tuple[str, str | bytes]]
SIZES = [-(2**63), -2, -1, 0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1]
NAMES = [
    "",
    "x",
    "y",
    "rows",
    "state/h",
    "state",
    "output",
    "picked",
    "X",
    "\x00",
    "a\nb",
    "\u2028",
    "x" * 5000,
    "../x",
]


def good_pick() -> tuple[list[tensor_pb2.Tensor], list[tensor_pb2.Tensor]]:
    """Returns inputs of ``pick``, and output gradients for it."""
    inputs = {
        "x": np.float32([[1, 2], [3, 4]]),
        "rows": np.int32([1, 0, 1]),
        "keep": np.bool_(True),
        "mode": np.array(b"minus", dtype=object),
        "state/h": np.float64([1, 2]),
        "state/steps/0": np.int64(2),
    }
    gradients = {"picked": np.ones((3, 2), np.float32), "state/h": np.float64([5, 7])}
    return [encode(v, k) for k, v in inputs.items()], [encode(v, k) for k, v in gradients.items()]


def good_request(rng: random.Random) -> tuple[str, Message]:
    """Returns a method, and a request for it that would be answered."""
    pair = [encode(np.float32([1, 2, 3]), name) for name in ("x", "y")]
    upstream = [encode(np.float32([1, 1, 1]), "output")]
    inputs, gradients = good_pick()
    requests: list[tuple[str, Message]] = [
        ("Vjp", pb.VjpRequest(op="multiply_with_grad", inputs=pair, output_gradients=upstream)),
        ("Vjp", pb.VjpRequest(op="pick", inputs=inputs, output_gradients=gradients, differentiate=["x", "state/h"])),
        ("Forward", pb.ForwardRequest(op="multiply_with_grad", inputs=pair)),
        ("Forward", pb.ForwardRequest(op="pick", inputs=inputs, version=1, signature="serving_default")),
        ("GetOp", pb.GetOpRequest(name="pick", version=1)),
        ("ListOps", pb.ListOpsRequest()),
    ]
    return rng.choices(requests, weights=[4, 4, 3, 3, 1, 1])[0]


def random_bytes(rng: random.Random) -> tuple[str, bytes]:
    """Returns bytes that are most likely no message."""
    return good_request(rng)[0], rng.randbytes(rng.choice([0, 1, 7, 60, 3000]))


def truncated(rng: random.Random) -> tuple[str, bytes]:
    """Returns the beginning of a good message."""
    method, message = good_request(rng)
    data = message.SerializeToString()
    return method, data[: rng.randrange(len(data) + 1)]


def flipped(rng: random.Random) -> tuple[str, bytes]:
    """Returns a good message with some bits flipped."""
    method, message = good_request(rng)
    data = bytearray(message.SerializeToString())
    for _ in range(rng.choice([1, 1, 2, 8]) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return method, bytes(data)


def of_another_method(rng: random.Random) -> tuple[str, bytes]:
    """Returns a good message under the wrong method."""
    return rng.choice(["Vjp", "Forward", "GetOp", "ListOps"]), good_request(rng)[1].SerializeToString()


def mutated(rng: random.Random) -> tuple[str, bytes]:
    """Returns a well-formed message that is wrong in one to three fields."""
    method, message = good_request(rng)
    for _ in range(rng.choice([1, 1, 2, 3])):
        if isinstance(message, pb.VjpRequest | pb.ForwardRequest):
            rng.choice(_EVALUATION_MUTATIONS)(rng, message)
        elif isinstance(message, pb.GetOpRequest):
            message.name, message.version = rng.choice([*NAMES, "pick"]), rng.choice(SIZES)
    return method, message.SerializeToString()


KINDS: tuple[Callable[[random.Random], tuple[str, bytes]], ...] = (
    random_bytes,
    truncated,
    flipped,
    of_another_method,
    mutated,
    mutated,
    mutated,
)
"""Ways to make a request; most are well-formed, so that they get past the parser."""


def metadata(rng: random.Random) -> Metadata:
    """Returns metadata that gRPC lets through, often none."""
    printable = "".join(rng.choices([chr(code) for code in range(0x20, 0x7F)], k=rng.choice([0, 1, 40, 200])))
    choices: list[Metadata] = [
        [],
        [],
        [("x-request-id", printable)],
        [("x-request-id", "one"), ("x-request-id", "two")],
        [("x-request-id-bin", rng.randbytes(20)), ("gradserve-timing", printable)],
        [("authorization", printable), ("grpc-status-details-bin", rng.randbytes(30))],
        [(f"k{rng.randrange(99)}", printable) for _ in range(20)],
    ]
    return rng.choice(choices)


def _tensor(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> tensor_pb2.Tensor:
    tensors = list(message.inputs)
    if isinstance(message, pb.VjpRequest):
        tensors += message.output_gradients
    return rng.choice(tensors) if tensors else message.inputs.add()


def _rename(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    _tensor(rng, message).name = rng.choice(NAMES)


def _change_dtype(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    _tensor(rng, message).dtype = rng.choice([*range(18), -1, 99, 2**31 - 1])  # type: ignore[assignment]  # on purpose


def _change_shape(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    _tensor(rng, message).shape[:] = rng.choices(SIZES, k=rng.choice([0, 1, 2, 3, 33]))


def _empty(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    """Makes a tensor that has no element, which any size can stand beside."""
    tensor = _tensor(rng, message)
    tensor.ClearField("data")
    tensor.shape[:] = rng.sample([0, *rng.choices([size for size in SIZES if size > 0], k=2)], k=3)


def _reshape(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    """Gives a tensor another shape with the bytes that belong to it."""
    shape = rng.choices([0, 1, 2, 3], k=rng.randrange(5))
    tensor = _tensor(rng, message)
    tensor.CopyFrom(encode(np.ones(shape, rng.choice([np.float32, np.int32, np.bool_])), tensor.name))


def _change_bytes(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    tensor = _tensor(rng, message)
    tensor.data = rng.choice([rng.randbytes(len(tensor.data)), tensor.data[:-1], tensor.data + b"\x00", b""])


def _break_bools(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    for tensor in message.inputs:
        if tensor.dtype == tensor_pb2.DATA_TYPE_BOOL:
            tensor.data = bytes([rng.randrange(2, 256)])


def _change_strings(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    _tensor(rng, message).strings[:] = [rng.randbytes(3) for _ in range(rng.randrange(3))]


def _repeat(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    message.inputs.append(_tensor(rng, message))


def _drop(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    if message.inputs:
        del message.inputs[rng.randrange(len(message.inputs))]


def _change_op(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    message.op = rng.choice([*NAMES, "square_with_grad", "reverse_gradient"])
    message.version = rng.choice([0, 0, *SIZES])


def _change_signature(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    message.signature = rng.choice([*NAMES, "float64", "serving_default"])


def _set_numbers(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    message.seed = rng.choice(SIZES)
    if isinstance(message, pb.VjpRequest):
        message.stack, message.variable_gradients = rng.randrange(3), rng.random() < 0.5


def _change_options(rng: random.Random, message: pb.VjpRequest | pb.ForwardRequest) -> None:
    if isinstance(message, pb.VjpRequest):
        message.differentiate[:] = rng.choices(NAMES, k=rng.randrange(3))
        message.unconnected = rng.choice([0, 1, 2, 3, -1, 2**31 - 1])  # type: ignore[assignment]  # on purpose


_EVALUATION_MUTATIONS = (
    _rename,
    _change_dtype,
    _change_shape,
    _empty,
    _reshape,
    _change_bytes,
    _break_bools,
    _change_strings,
    _repeat,
    _drop,
    _change_op,
    _change_signature,
    _set_numbers,
    _change_options,
)
