"""The ops of the guides, through a real server and the real client."""

from gradserve import Client


def test_square_at_three_gives_nine_and_six(client: Client) -> None:
    result = client.vjp("square_with_grad", 3.0)
    assert (result.output, result.gradient) == (9.0, 6.0)


def test_multiply_at_four_and_five_gives_each_the_other(client: Client) -> None:
    result = client.vjp("multiply_with_grad", {"x": 4.0, "y": 5.0})
    assert result.output == 20.0
    assert result.input_gradients == {"x": 5.0, "y": 4.0}
