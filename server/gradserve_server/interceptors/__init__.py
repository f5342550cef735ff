"""Interceptors: what cuts across all RPCs."""
