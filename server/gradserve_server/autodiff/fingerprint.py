"""Fingerprints: a digest of what an op computes, equal in every process that traces the same op."""

import hashlib
import re
from typing import Any

from gradserve.signature import Signature, signature_to_message

_SERIAL_NUMBER = re.compile(rb"(__(?:inference|forward|backward)_.*?|CustomGradient-|PartitionedCall-|pyfunc_)\d+")


def fingerprint(signature: Signature, traces: list[Any]) -> str:
    """Returns 32 hexadecimal digits over a signature and the graphs of its concrete functions.

    The serial numbers that TensorFlow gives to functions and gradients are left out: they depend on what was traced
    before.
    """
    digest = hashlib.sha256(signature_to_message(signature).SerializeToString(deterministic=True))
    for trace in traces:
        graph = trace.graph.as_graph_def()
        parts = [node.SerializeToString(deterministic=True) for node in graph.node]
        parts += sorted(function.SerializeToString(deterministic=True) for function in graph.library.function)
        for part in parts:
            digest.update(_SERIAL_NUMBER.sub(rb"\1", part))
    return digest.hexdigest()[:32]
