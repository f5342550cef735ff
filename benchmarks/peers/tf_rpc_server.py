"""TensorFlow's own RPC server, in C++."""

import sys

from op import tf, vjp

server = tf.distribute.experimental.rpc.Server.create("grpc", f"localhost:{sys.argv[1]}")
server.register("vjp", vjp)
server.start()
sys.stdin.read()  # until whoever started it has ended
