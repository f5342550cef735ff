"""Health: grpc.health.v1 for the server as a whole and for its service; NOT_SERVING until told otherwise."""

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gradserve.messages import SERVICE

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The standard health service. grpcio's own starts as SERVING, so it is set before any port is open."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()

    async def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server that has not been started, as NOT_SERVING."""
        await self.set_serving(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, serving: bool) -> None:
        """Says whether calls are answered."""
        for name in ("", SERVICE):
            await self._servicer.set(name, _SERVING if serving else _NOT_SERVING)

    async def stop(self) -> None:
        """Says NOT_SERVING for good."""
        await self._servicer.enter_graceful_shutdown()
