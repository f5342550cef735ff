"""``make demo``: starts the real server on loopback, calls the example ops through the real client, prints, stops."""

from pathlib import Path

import numpy as np

from gradserve import Client
from gradserve_server.testing import server_process

OPS = Path(__file__).with_name("ops.py")


def text(array: np.ndarray | float) -> str:
    """Returns an array in one line, with the digits that its dtype has."""
    return " ".join(np.array2string(np.asarray(array), separator=", ", formatter={"float_kind": str}).split())


def show(
    client: Client, op: str, inputs: dict, output_gradient: np.ndarray | None = None, seed: int | None = None
) -> None:
    """Calls an op and prints what went in and what came out."""
    gradients = None if output_gradient is None else {"output": output_gradient}
    result = client.vjp(op, inputs, gradients, seed=seed)
    given = inputs if output_gradient is None else {**inputs, "dy": output_gradient}
    given = given if seed is None else {**given, "seed": seed}
    print(f"{op}({', '.join(f'{name}={text(value)}' for name, value in given.items())})")
    print(f"    output: {text(result.output)}")
    for name, gradient in result.input_gradients.items():
        print(f"    gradient of {name}: {'none' if gradient is None else text(gradient)}")


def main() -> None:
    """Runs the demonstration."""
    with server_process(str(OPS)) as server, Client(server.target) as client:
        print(f"server at {server.target}: {client.health()}, {len(client.ops())} ops\n")
        row = np.array([-2.5, -0.4, 0.6, 2.5], dtype=np.float32)
        dy = np.array([1, 2, 3, 4], dtype=np.float32)
        show(client, "square_with_grad", {"x": 3.0})
        show(client, "multiply_with_grad", {"x": 4.0, "y": 5.0})
        show(client, "square_with_clipped_grad", {"x": [[2.0], [3.0]]})
        show(client, "clipped_identity", {"x": row}, dy)
        show(client, "round_with_identity_grad", {"x": row}, dy)
        show(client, "log1p_exp", {"x": np.array([-100, 0, 100], dtype=np.float32)})
        show(client, "reverse_gradient", {"x": row, "strength": 0.5}, dy)
        show(client, "safe_sqrt", {"x": np.array([0, 4], dtype=np.float32)})
        show(client, "sign_straight_through", {"x": row}, dy)
        show(client, "spike", {"v": np.array([-0.5, 0.5], dtype=np.float32), "dampening": 0.3})
        show(client, "dropout", {"x": row}, dy, seed=7)
        print("square_with_grad, other derivatives at x=3.0")
        print(f"    Jacobian: {text(client.jacobian('square_with_grad', 3.0).jacobian)}")
        print(f"    second derivative times 1.0: {text(client.hvp('square_with_grad', 3.0, 1.0).product)}")
        print("checks: differences of forward values against the rule")
        for op in ("square_with_grad", "spike"):
            print(f"    {client.check_gradient(op).text}")
    print(f"\nserver stopped with exit status {server.process.returncode}")


if __name__ == "__main__":
    main()
