"""Seeds: the input of an op that takes the seed of a request."""

from collections.abc import Mapping

import numpy as np

from gradserve.errors import InvalidRequest, quote
from gradserve.signature import Signature, TensorSpec
from gradserve.tensors import Array

SEED = "seed"
"""Name of that input."""
_DTYPES = ("int32", "int64", "uint32", "uint64")


def seed_input(signature: Signature) -> TensorSpec | None:
    """Returns the input that takes a request's seed: an integer one called "seed", of shape () or (2,)."""
    spec = signature.inputs.get(SEED)
    takes_seed = spec is not None and spec.dtype.name in _DTYPES and spec.shape in ((), (2,))
    return spec if takes_seed else None


def with_seed(arrays: Mapping[str, Array], seed: int | None, signature: Signature, op: str) -> Mapping[str, Array]:
    """Returns the inputs of a request with the one that its seed stands for.

    An input of shape (2,), as ``tf.random.stateless_*`` takes it, becomes (seed, 0). Of a 32-bit dtype it takes the lower
    and the upper half of the seed, which is the same for seeds from 0 to 2^31 - 1.

    Args:
        arrays: The inputs by name.
        seed: The seed, -2^63 to 2^63 - 1; None for none.
        signature: The signature that is called.
        op: Name of the op, for errors.

    Raises:
        InvalidRequest: The op takes no seed (NO_SEED_INPUT), the input is given too (BAD_INPUT_NAMES), or the seed does not fit
            into it (BAD_SEED).
    """
    if seed is None:
        return arrays
    place = f"op {quote(op)}, seed"
    spec = seed_input(signature)
    if spec is None:
        raise InvalidRequest(
            f"{place}: wanted none, got {seed}: an op takes one by an integer input named {SEED!r} of shape () or (2,)",
            reason="NO_SEED_INPUT",
            facts={"op": op[:64]},
        )
    if SEED in arrays:
        raise InvalidRequest(
            f"{place}: it is given twice, as {seed} and as the input {SEED!r}; leave one out",
            reason="BAD_INPUT_NAMES",
            facts={"op": op[:64]},
        )
    return {**arrays, SEED: _as_array(seed, spec, place)}


def _as_array(seed: int, spec: TensorSpec, place: str) -> Array:
    info = np.iinfo(spec.dtype.numpy)
    if spec.shape == (2,):
        halves = [seed % 2**32, seed % 2**64 >> 32] if info.bits == 32 else [seed % 2**64, 0]
        return np.array(halves, f"<u{info.bits // 8}").view(spec.dtype.numpy)
    if not info.min <= seed <= info.max:
        raise InvalidRequest(
            f"{place}: it must fit into {spec.dtype.name}: wanted {info.min} to {info.max}, got {seed}",
            reason="BAD_SEED",
            facts={"wanted": f"{info.min} to {info.max}", "got": str(seed)},
        )
    return np.array(seed, spec.dtype.numpy)
