"""Runs under the names that a signature of the model file gives to tensors."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec.structs import replace

from asyncnn.execution import Outputs
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.model_description import Signature
from asyncnn.runtime.opening import Opened, opens
from asyncnn.runtime.requests import Inputs, Results


class SignatureRuns(Opened):
    """A model, or a session of one, called by the names of ``signature``.

    Made by `PreparedModel.signature`. All options are the model's or session's.
    """

    def __init__(
        self,
        signature: Signature,
        run: Callable[..., Awaitable[Outputs]],
        session: Callable[..., AbstractAsyncContextManager[Any]] | None = None,
    ) -> None:
        self.signature = signature
        self._run = run
        self._session = session

    async def run(
        self, inputs: Inputs, *, out: Results | None = None, **options: Any
    ) -> Outputs:
        """Execute once; inputs, ``out`` and results have the signature's names.

        Where they are given in order, that is the signature's order.

        :raises InvalidArgumentError: if a name is none of the signature's, or a number
            of arrays is another than of its names.
        :raises AsyncnnError: as `PreparedModel.run` and `Session.run` do.
        """
        if out is not None:
            options["out"] = _renamed("output", self.signature.outputs, out)
        given = _renamed("input", self.signature.inputs, inputs)
        outputs = await self._run(given, **options)
        named = Outputs(
            (name, outputs[tensor])
            for name, tensor in self.signature.outputs
            if tensor in outputs
        )
        named.timing, named.route = outputs.timing, outputs.route
        return named

    @opens("session")
    async def session(self, **options: Any) -> "AsyncIterator[SignatureRuns]":
        """Open a session whose steps have the signature's names.

        :raises InvalidArgumentError: if this is a session already.
        :raises AsyncnnError: as `PreparedModel.session` does.
        """
        if self._session is None:
            raise InvalidArgumentError("a session has no sessions of its own")
        async with self._session(**options) as session:
            known = [info.name for info in session.inputs]
            inputs = tuple(pair for pair in self.signature.inputs if pair[1] in known)
            yield SignatureRuns(replace(self.signature, inputs=inputs), session.run)

    def __repr__(self) -> str:
        names = [[name for name, _ in pairs] for pairs in self._borders]
        return f"<SignatureRuns {self.signature.name!r} {names[0]} -> {names[1]}>"

    @property
    def _borders(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        return self.signature.inputs, self.signature.outputs


def _renamed(
    kind: str, pairs: Sequence[tuple[str, str]], given: Inputs | Results
) -> dict[str, Any]:
    tensors = dict(pairs)
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in tensors]
        if unknown:
            raise InvalidArgumentError(
                f"the signature has no {kind} {unknown[0]!r}",
                hint=f"known: {', '.join(tensors)}",
            )
        return {tensors[name]: value for name, value in given.items()}
    values = list(given) if isinstance(given, list | tuple) else [given]
    if len(values) != len(tensors):
        raise InvalidArgumentError(
            f"{len(values)} {kind}s for a signature with {len(tensors)}"
        )
    return dict(zip(tensors.values(), values, strict=True))
