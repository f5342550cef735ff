"""Short ways to write arrays of a dtype, and to compare them in value, shape and dtype."""

from typing import Any

import numpy as np


def f32(*values: Any) -> np.ndarray:
    """Returns a float32 vector (or more, of nested lists)."""
    return np.array(values, np.float32)


def f64(*values: Any) -> np.ndarray:
    """Returns a float64 vector (or more, of nested lists)."""
    return np.array(values, np.float64)


def assert_close(got: np.ndarray | None, wanted: np.ndarray, tolerance: float = 1e-6) -> None:
    """Compares two arrays in shape and dtype exactly and in values to a tolerance."""
    assert got is not None
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def assert_same_bits(got: np.ndarray | None, wanted: np.ndarray) -> None:
    """Compares two arrays bit for bit, so that NaNs and the sign of zero count."""
    assert got is not None
    assert (got.shape, got.dtype, got.tobytes()) == (wanted.shape, wanted.dtype, wanted.tobytes())
