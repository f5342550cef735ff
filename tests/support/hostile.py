"""Malformed and mutated requests, drawn from a seed: what a hostile or broken caller could send."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.message import Message

from gradserve.tensors import decode, encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2

Metadata = list[tuple[str, str | bytes]]
Evaluation = pb.ForwardRequest | pb.VjpRequest | pb.JvpRequest | pb.HvpRequest | pb.JacobianRequest
REQUESTS: dict[str, type[Message]] = {
    "Forward": pb.ForwardRequest,
    "Vjp": pb.VjpRequest,
    "Jvp": pb.JvpRequest,
    "Hvp": pb.HvpRequest,
    "Jacobian": pb.JacobianRequest,
    "GetOp": pb.GetOpRequest,
    "ListOps": pb.ListOpsRequest,
}
ONE_INPUT = [
    "square_with_grad",
    "clipped_identity",
    "square_with_clipped_grad",
    "round_with_identity_grad",
    "log1p_exp",
    "safe_sqrt",
    "sign_straight_through",
]
"""Ops of the examples that take ``x`` alone."""
STACKS = [0, 1, 2, 3, 64, 4096, 4097, 2**20, 2**31 - 1, 2**31, 2**32 - 1]
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
    make = rng.choices(
        [_good_vjp, _good_forward, _good_jvp, _good_hvp, _good_jacobian, _good_stack, _good_question],
        weights=[4, 3, 3, 3, 3, 4, 1],
    )[0]
    return make(rng)


def _good_call(rng: random.Random) -> tuple[str, list[tensor_pb2.Tensor], list[tensor_pb2.Tensor]]:
    """Returns an op, inputs, and output gradients for it."""
    x, number = encode(np.float32([1, 2, 3]), "x"), np.float32(0.5)
    upstream = [encode(np.float32([1, 0, -1]), "output")]
    calls = [
        ("multiply_with_grad", [x, encode(np.float32([4, 5, 6]), "y")], upstream),
        (
            "multiply_with_grad",
            [x, encode(np.float32([[7], [8]]), "y")],
            [encode(np.ones((2, 3), np.float32), "output")],
        ),
        ("pick", *good_pick()),
        ("reverse_gradient", [x, encode(number, "strength")], upstream),
        ("spike", [encode(np.float32([1, 2, 3]), "v"), encode(number, "dampening")], upstream),
        ("drawn", [x, encode(np.int32([1, 2]), "seed")], upstream),
        ("largest", [x, encode(np.float32([1, 2, 3]), "b"), encode(number, "c")], upstream),
    ]
    return rng.choice([*calls, *((op, [x], upstream) for op in rng.sample(ONE_INPUT, 2))])


def _good_vjp(rng: random.Random) -> tuple[str, Message]:
    op, inputs, gradients = _good_call(rng)
    differentiate = [inputs[0].name] if rng.random() < 0.3 else []
    return "Vjp", pb.VjpRequest(op=op, inputs=inputs, output_gradients=gradients, differentiate=differentiate)


def _good_forward(rng: random.Random) -> tuple[str, Message]:
    op, inputs, _ = _good_call(rng)
    return "Forward", pb.ForwardRequest(op=op, inputs=inputs, version=1, signature="serving_default")


def _good_jvp(rng: random.Random) -> tuple[str, Message]:
    op, inputs, _ = _good_call(rng)
    return "Jvp", pb.JvpRequest(op=op, inputs=inputs, tangents=_vectors(rng, inputs))


def _good_hvp(rng: random.Random) -> tuple[str, Message]:
    op, inputs, gradients = _good_call(rng)
    return "Hvp", pb.HvpRequest(op=op, inputs=inputs, output_gradients=gradients, vectors=_vectors(rng, inputs))


def _good_jacobian(rng: random.Random) -> tuple[str, Message]:
    op, inputs, _ = _good_call(rng)
    return "Jacobian", pb.JacobianRequest(op=op, inputs=inputs, unconnected=rng.randrange(3))


def _good_stack(rng: random.Random) -> tuple[str, Message]:
    op, inputs, gradients = _good_call(rng)
    stack = rng.choice([1, 2, 5])
    rows = [encode(np.stack([decode(gradient)] * stack), gradient.name) for gradient in gradients]
    return "Vjp", pb.VjpRequest(op=op, inputs=inputs, output_gradients=rows, stack=stack)


def _good_question(rng: random.Random) -> tuple[str, Message]:
    return rng.choice([("GetOp", pb.GetOpRequest(name="pick", version=1)), ("ListOps", pb.ListOpsRequest())])


def _vectors(rng: random.Random, inputs: list[tensor_pb2.Tensor]) -> list[tensor_pb2.Tensor]:
    """Returns vectors for one or more of the floating-point inputs."""
    floating = [tensor for tensor in inputs if decode(tensor).dtype.kind == "f"]
    chosen = rng.sample(floating, rng.randint(1, len(floating)))
    return [encode(decode(tensor) * decode(tensor).dtype.type(3), tensor.name) for tensor in chosen]


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
    return rng.choice(list(REQUESTS)), good_request(rng)[1].SerializeToString()


def mutated(rng: random.Random) -> tuple[str, bytes]:
    """Returns a well-formed message that is wrong in one to three fields."""
    method, message = good_request(rng)
    for _ in range(rng.choice([1, 1, 2, 3])):
        if isinstance(message, Evaluation):
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


def _tensor(rng: random.Random, message: Evaluation) -> tensor_pb2.Tensor:
    tensors = [tensor for field in tensor_fields(message) for tensor in field]
    return rng.choice(tensors) if tensors else message.inputs.add()


def tensor_fields(message: Evaluation) -> list[Any]:
    """Returns the lists of tensors that a request has, such as its inputs and its tangents."""
    names = ("inputs", "output_gradients", "tangents", "vectors")
    return [getattr(message, name) for name in names if name in message.DESCRIPTOR.fields_by_name]


def _rename(rng: random.Random, message: Evaluation) -> None:
    _tensor(rng, message).name = rng.choice(NAMES)


def _change_dtype(rng: random.Random, message: Evaluation) -> None:
    _tensor(rng, message).dtype = rng.choice([*range(18), -1, 99, 2**31 - 1])  # type: ignore[assignment]  # on purpose


def _change_shape(rng: random.Random, message: Evaluation) -> None:
    _tensor(rng, message).shape[:] = rng.choices(SIZES, k=rng.choice([0, 1, 2, 3, 33]))


def _empty(rng: random.Random, message: Evaluation) -> None:
    """Makes a tensor that has no element, which any size can stand beside."""
    tensor = _tensor(rng, message)
    tensor.ClearField("data")
    tensor.shape[:] = rng.sample([0, *rng.choices([size for size in SIZES if size > 0], k=2)], k=3)


def _reshape(rng: random.Random, message: Evaluation) -> None:
    """Gives a tensor another shape with the bytes that belong to it."""
    shape = rng.choices([0, 1, 2, 3], k=rng.randrange(5))
    tensor = _tensor(rng, message)
    tensor.CopyFrom(encode(np.ones(shape, rng.choice([np.float32, np.int32, np.bool_])), tensor.name))


def _change_bytes(rng: random.Random, message: Evaluation) -> None:
    tensor = _tensor(rng, message)
    tensor.data = rng.choice([rng.randbytes(len(tensor.data)), tensor.data[:-1], tensor.data + b"\x00", b""])


def _break_bools(rng: random.Random, message: Evaluation) -> None:
    for tensor in message.inputs:
        if tensor.dtype == tensor_pb2.DATA_TYPE_BOOL:
            tensor.data = bytes([rng.randrange(2, 256)])


def _change_strings(rng: random.Random, message: Evaluation) -> None:
    _tensor(rng, message).strings[:] = [rng.randbytes(3) for _ in range(rng.randrange(3))]


def _repeat(rng: random.Random, message: Evaluation) -> None:
    rng.choice(tensor_fields(message)).append(_tensor(rng, message))


def _drop(rng: random.Random, message: Evaluation) -> None:
    field = rng.choice(tensor_fields(message))
    if field:
        del field[rng.randrange(len(field))]


def _clear(rng: random.Random, message: Evaluation) -> None:
    """Leaves out all inputs, all output gradients, or all vectors."""
    del rng.choice(tensor_fields(message))[:]


def _grow(rng: random.Random, message: Evaluation) -> None:
    """Gives a tensor so many elements that Jacobians and stacks have thousands of rows, or a response megabytes."""
    tensor, size = _tensor(rng, message), rng.choice([60, 500, 5000])
    shape = rng.choice([(size,), (size, 1), (1, size), (2, size)])
    tensor.CopyFrom(encode(np.ones(shape, np.float32), tensor.name))


def _empty_all(rng: random.Random, message: Evaluation) -> None:
    """Makes every tensor of a request one of no element, and some of those very long."""
    size = rng.choice([1, 3, 2**10, 2**20, 2**31, 2**62])
    shape = rng.choice([(0,), (size, 0), (0, size), (1, size, 0)])
    for field in tensor_fields(message):
        for tensor in field:
            tensor.ClearField("data")
            tensor.shape[:] = shape


def _change_op(rng: random.Random, message: Evaluation) -> None:
    message.op = rng.choice([*NAMES, *ONE_INPUT, "reverse_gradient", "spike", "drawn", "largest"])
    message.version = rng.choice([0, 0, *SIZES])


def _change_signature(rng: random.Random, message: Evaluation) -> None:
    message.signature = rng.choice([*NAMES, "float64", "serving_default"])


def _set_seed(rng: random.Random, message: Evaluation) -> None:
    message.seed = rng.choice(SIZES)
    if rng.random() < 0.5:  # and takes away the input that it would fill
        for tensor in list(message.inputs):
            if tensor.name == "seed":
                message.inputs.remove(tensor)


def _set_stack(rng: random.Random, message: Evaluation) -> None:
    if isinstance(message, pb.VjpRequest):
        message.stack = rng.choice(STACKS)
        for gradient in message.output_gradients if rng.random() < 0.5 else ():
            gradient.ClearField("data")  # rows of no element, which a small message can have by the billion
            gradient.shape[:] = [message.stack, 0]
        if rng.random() < 0.3:
            del message.output_gradients[:]


def _change_options(rng: random.Random, message: Evaluation) -> None:
    if isinstance(message, pb.VjpRequest | pb.JacobianRequest):
        message.differentiate[:] = rng.choices(NAMES, k=rng.randrange(3))
    if isinstance(message, pb.VjpRequest):
        message.variable_gradients = rng.random() < 0.5
    if not isinstance(message, pb.ForwardRequest):
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
    _clear,
    _grow,
    _empty_all,
    _change_op,
    _change_signature,
    _set_seed,
    _set_stack,
    _change_options,
)
