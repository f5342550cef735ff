"""Interleaves contenders over rounds: each round measures all of them in turns, and gives their ratios to a baseline.

Absolute times mean little on a shared machine; the ratio of two figures of the same round means something. Of the rounds
the median counts, and the least and the greatest say how far to trust it.
"""

import dataclasses
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence

from clock import Figures

Measure = Callable[[], Awaitable[Figures]]
"""Measures one contender for one round."""


class Refused(Exception):
    """The contender does not take this workload; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Ratios to the baseline, over the rounds."""

    median: float
    least: float
    greatest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.greatest:.2f})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the rounds of one workload gave."""

    workload: str
    """What every contender did."""
    baseline: str
    """The contender that the others are compared with."""
    metrics: tuple[str, ...]
    """The figures that matter for this workload."""
    rounds: Mapping[str, list[Figures]]
    """The figures of each round, by contender."""
    refused: Mapping[str, str]
    """Why contenders refused it, by contender."""

    def median(self, contender: str, metric: str) -> float:
        """Returns the median of a figure over the rounds."""
        return statistics.median(figures[metric] for figures in self.rounds[contender])

    def ratios(self, contender: str, metric: str) -> Ratios:
        """Returns the ratios of a figure to the baseline's of the same round."""
        pairs = zip(self.rounds[contender], self.rounds[self.baseline], strict=True)
        ratios = [ours[metric] / baseline[metric] for ours, baseline in pairs]
        return Ratios(median=statistics.median(ratios), least=min(ratios), greatest=max(ratios))

    def part(self, workload: str, baseline: str, contenders: Sequence[str]) -> "Result":
        """Returns what the same rounds say of some contenders against another baseline, under another name."""
        rounds = {name: self.rounds[name] for name in (*contenders, baseline)}
        return dataclasses.replace(self, workload=workload, baseline=baseline, rounds=rounds)


async def interleave(
    workload: str, measures: Mapping[str, Measure], rounds: int, *, baseline: str, metrics: tuple[str, ...]
) -> Result:
    """Measures all contenders in each round, in one order and then in the other; the first round warms up.

    Args:
        workload: Name of what they do.
        measures: What measures each of them.
        rounds: How many rounds count.
        baseline: Name of the contender that the others are compared with.
        metrics: Names of the figures that matter.
    """
    kept: dict[str, list[Figures]] = {name: [] for name in measures}
    refused: dict[str, str] = {}
    for number in range(-1, rounds):
        for name in list(measures) if number % 2 else reversed(list(measures)):
            if name in refused:
                continue
            try:
                figures = await measures[name]()
            except Refused as error:
                refused[name] = str(error)
                continue
            if number >= 0:
                kept[name].append(figures)
    return Result(workload=workload, baseline=baseline, metrics=metrics, rounds=kept, refused=refused)
