"""Steps: what one operation does to the paths that reach its inputs, as a function to the paths that reach its outputs."""

from collections.abc import Callable, Sequence
from typing import Any

from gradserve_server.autodiff import gradient_rules as rules
from gradserve_server.autodiff.paths import KEPT, Summary, compose, join

Step = Callable[[Summary], Summary]


def step_of(operation: Any) -> Step:
    """Returns the step of an operation that calls no function."""
    if operation.type != "IdentityN":
        return _ordinary(operation, set(rules.cut_inputs(operation)), set(rules.lacks_rule(operation)))
    return _custom(operation) if rules.is_custom(operation) else lambda inputs: inputs


def opaque(operation: Any) -> Step:
    """Returns the step of a call that TensorFlow cannot differentiate: its function is not known, or calls itself."""
    return _ordinary(operation, set(), set(range(len(operation.inputs))))


def call(function: Summary) -> Step:
    """Returns the step of a call of a function."""
    return lambda inputs: [compose(paths, inputs) for paths in function]


def choice(branches: Sequence[Summary]) -> Step:
    """Returns the step of a choice between functions, of which the first input is the condition."""

    def step(inputs: Summary) -> Summary:
        chosen = inputs[0].as_values()
        taken = zip(*(call(branch)(inputs[1:]) for branch in branches), strict=True)
        return [join([chosen, *paths]) for paths in taken]

    return step


def loop(condition: Summary, body: Summary) -> Step:
    """Returns the step of a loop; what a variable depends on after some rounds, it may depend on after none."""

    def step(inputs: Summary) -> Summary:
        before: Summary = []
        after = list(inputs)
        while after != before:
            before = after
            after = [join(pair) for pair in zip(before, call(body)(before), strict=True)]
        rounds = compose(condition[0], after).as_values()
        return [join([paths, rounds]) for paths in after]

    return step


def _ordinary(operation: Any, cut: set[int], missing: set[int]) -> Step:
    kind = operation.type
    smooth = [rules.is_smooth(tensor.dtype) for tensor in operation.outputs]
    kept = [KEPT.blocked_by(kind)] if kind == "EagerPyFunc" else []

    def step(inputs: Summary) -> Summary:
        passed = [paths.as_values() if index in cut else paths for index, paths in enumerate(inputs)]
        crossed = [paths.blocked_by(kind) if index in missing else paths for index, paths in enumerate(passed)]
        reached = join([*kept, *crossed])
        return [reached if each else reached.as_values() for each in smooth]

    return step


def _custom(operation: Any) -> Step:
    """The derivative goes from each result straight to the arguments; the results' own paths carry values alone."""
    kind = operation.type
    smooth = [rules.is_smooth(tensor.dtype) for tensor in operation.outputs]
    missing = bool(rules.lacks_rule(operation))
    arguments = rules.differentiated_inputs(operation)

    def step(inputs: Summary) -> Summary:
        derivative = join([inputs[index].blocked_by(kind) if missing else inputs[index] for index in arguments])
        return [join([own.as_values(), derivative]) if each else own for own, each in zip(inputs, smooth, strict=True)]

    return step
