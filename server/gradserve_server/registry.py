"""The registry: name, version and signature key -> ``Op``; immutable once built."""

import dataclasses
import difflib
import hashlib
from collections.abc import Iterable, Mapping

from gradserve.errors import NotFound, OpContractError, quote, quote_all
from gradserve.op_info import OpInfo
from gradserve.tensors import Array
from gradserve_server.ops import Op, OpLoadError
from gradserve_server.status import hide_paths

_MAX_NAME = 128  # characters of a caller's name that are compared with those there are


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpVersion:
    """One version of an op: its signatures, or why it could not be loaded."""

    info: OpInfo
    """What callers are told."""
    ops: Mapping[str, Op]
    """The op by signature key; empty if it could not be loaded."""
    failure: OpLoadError | None = None
    """Why it could not be loaded."""

    def check_loaded(self) -> None:
        """Refuses a version that could not be loaded.

        Raises:
            OpContractError: Reason OP_NOT_LOADED.
        """
        if self.failure is not None:
            raise OpContractError(
                f"op {quote(self.info.name)} version {self.info.version} could not be loaded: {self.info.failure}",
                reason="OP_NOT_LOADED",
                facts={"op": self.info.name, "cause": self.failure.cause},
            )

    def select(self, key: str, inputs: Mapping[str, Array]) -> Op:
        """Returns the signature that a request means.

        Args:
            key: Signature key; empty for the first one, default before others, whose dtypes the inputs have.
            inputs: The inputs by name.

        Raises:
            NotFound: There is no such signature.
        """
        if key:
            if key not in self.ops:
                raise NotFound(
                    f"op {quote(self.info.name)}: no such signature: wanted one of {quote_all(list(self.ops))}, "
                    f"got {quote(key)}",
                    reason="NO_SUCH_SIGNATURE",
                    facts={"op": self.info.name},
                )
            return self.ops[key]
        candidates = list(self.ops.values())
        return next((op for op in candidates if op.signature.fits_dtypes(inputs)), candidates[0])


class Registry:
    """Every version of every op that the server hosts, and those that it was told to start without."""

    def __init__(self, ops: Iterable[Op], failures: Iterable[OpLoadError] = ()) -> None:
        """Builds the registry; a failure that names an op takes the place of that version."""
        loaded: dict[tuple[str, int], dict[str, Op]] = {}
        for op in ops:
            loaded.setdefault((op.name, op.version), {})[op.signature.key] = op
        versions = {key: OpVersion(info=_info(list(group.values())), ops=group) for key, group in loaded.items()}
        for failure in failures:
            if failure.name:
                versions[failure.name, failure.version] = _failed(failure)
        self._versions = dict(sorted(versions.items()))
        self._newest: dict[str, int] = {}
        for name, version in self._versions:  # sorted, so that the highest version comes last
            self._newest[name] = version

    def infos(self) -> list[OpInfo]:
        """Returns what callers are told of each version, by name and then by version."""
        return [version.info for version in self._versions.values()]

    def versions(self) -> list[OpVersion]:
        """Returns every version of every op, by name and then by version."""
        return list(self._versions.values())

    def ops(self) -> list[Op]:
        """Returns every signature of every version that was loaded."""
        return [op for version in self._versions.values() for op in version.ops.values()]

    def find(self, name: str, version: int) -> OpVersion:
        """Returns one version of an op, loaded or not; 0 is the newest.

        Raises:
            NotFound: There is no op of that name (NO_SUCH_OP), or not in that version (NO_SUCH_VERSION).
        """
        newest = self._newest.get(name)
        if newest is None:
            close = difflib.get_close_matches(name[:_MAX_NAME], self._newest, n=1)
            remedy = f"did you mean {quote(close[0])}?" if close else "ListOps names those there are (`gradserve ops`)"
            raise NotFound(f"no such op: got {quote(name)}; {remedy}", reason="NO_SUCH_OP")
        found = self._versions.get((name, version or newest))
        if found is None:
            versions = [str(known) for op_name, known in self._versions if op_name == name]
            raise NotFound(
                f"op {quote(name)}: no such version: wanted one of {', '.join(versions)}, got {version}",
                reason="NO_SUCH_VERSION",
                facts={"op": name},
            )
        return found


def _info(ops: list[Op]) -> OpInfo:
    first = ops[0]
    digests = "".join(op.fingerprint for op in ops)
    return OpInfo(
        name=first.name,
        version=first.version,
        documentation=first.documentation,
        signatures={op.signature.key: op.signature for op in ops},
        gradient=first.gradient,
        elementwise=first.elementwise,
        stateful=first.stateful,
        variables={name: spec for op in ops for name, spec in op.variables.items()},
        device=first.device,
        repeatable=all(op.repeatable for op in ops),
        linear=_all_or_unknown([op.linear for op in ops]),
        fingerprint=hashlib.sha256(digests.encode()).hexdigest()[:32],
    )


def _all_or_unknown(facts: list[bool | None]) -> bool | None:
    return None if None in facts and False not in facts else all(facts)


def _failed(failure: OpLoadError) -> OpVersion:
    info = OpInfo(
        name=failure.name,
        version=failure.version,
        documentation="",
        signatures={},
        gradient="unchecked",
        elementwise=False,
        stateful=False,
        device="",
        fingerprint="",
        failure=f"{failure.cause}: {hide_paths(failure.text)}",
    )
    return OpVersion(info=info, ops={}, failure=failure)
