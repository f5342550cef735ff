"""A bare grpc.aio server that answers with the request's own bytes: the floor of gRPC in Python. It answers health checks too."""

import asyncio

import grpc
from grpc_health.v1 import health, health_pb2_grpc


async def echo(request: bytes, _: object) -> bytes:
    """Returns the request."""
    return request


async def main() -> None:
    """Serves on a free port of loopback, which is printed, until it is killed."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Echo", {"Echo": handler}),))
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
