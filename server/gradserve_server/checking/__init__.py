"""Checking: whether a gradient is the derivative that it claims to be, judged by forward values."""
