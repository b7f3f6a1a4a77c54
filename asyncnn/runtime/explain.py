"""Says of each operation of a model why a device would run it, or why not.

`explain` asks the device, then validates and checks operation by operation to find the
rule that is broken, or the type that is unknown.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from asyncnn.devices.measured_capabilities import reference_capabilities
from asyncnn.engine.costs import ModelCosts, chosen_figure
from asyncnn.extensions import (
    Extension,
    ExtensionNames,
    Extensions,
    Vocabulary,
    check_extended_operation,
    joined,
    names_in,
)
from asyncnn.extensions.regions import region_of
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    WrongTypeError,
    error_for,
)
from asyncnn.hal.interfaces import IDevice, hal_hints, has_measured_capabilities
from asyncnn.hal.operands import is_extension_type, is_tensor
from asyncnn.hal.operations import check_operation
from asyncnn.hal.performance import kernel_capabilities, relative_to
from asyncnn.hal.routes import EngineShare, IBatches, IEngineShares
from asyncnn.hal.types import (
    EXTENSION_TYPE_BITS,
    Capabilities,
    ErrorStatus,
    ExecutionPreference,
    HalVersion,
    Model,
    OperandLifeTime,
    Operation,
    Subgraph,
)
from asyncnn.hal.validate import validating
from asyncnn.offload import offload, offload_steps
from asyncnn.pacing import Steps
from asyncnn.runtime.device import Device, numbered_ends
from asyncnn.runtime.framework.older_drivers import OlderDriver
from asyncnn.runtime.framework.partition import DevicePlan
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.translation import IPlanning, form_for
from asyncnn.runtime.unsupported import UnsupportedOperator

_NEWEST = max(HalVersion)


class Cause(StrEnum):
    """What stands in the way of an operation."""

    SIGNATURE = "signature"
    """Number, types, ranks or other properties of its operands."""
    VERSION = "version"
    """The way it is used came with a newer HAL."""
    EXTENSION = "extension"
    """It belongs to an extension that the device does not have."""
    KERNEL = "kernel"
    """It is legal, but the device cannot compute it."""
    SUBGRAPH = "subgraph"
    """A subgraph that it runs has an operation that is not supported."""
    MODEL = "model"
    """A rule is broken in another place, so that the whole model is refused."""


class OperationReport(msgspec.Struct, frozen=True):
    """One operation: ``index`` of the main subgraph, or of a referenced one.

    ``main_type`` is the type of its first tensor, ``since`` the HAL version that the
    way it is used needs, both empty if unknown. ``reason`` explains the ``cause``.
    Where a model is divided, ``device`` is the one that an operation would go to, and
    ``choice`` says why. If a device has several engines, ``engine`` computes it; if a
    better one does not, ``obstacle`` says why.
    """

    subgraph: int | None
    index: int
    type: str
    main_type: str = ""
    since: str = ""
    cause: Cause | None = None
    reason: str = ""
    device: str = ""
    choice: str = ""
    engine: str = ""
    obstacle: str = ""

    @property
    def is_supported(self) -> bool:
        """Whether the device would run the operation."""
        return self.cause is None

    @property
    def place(self) -> str:
        """Where the operation stands, in words."""
        if self.subgraph is None:
            return f"operation {self.index}"
        return f"operation {self.index} of referenced subgraph {self.subgraph}"


class PartitionReport(msgspec.Struct, frozen=True):
    """Operations of the main subgraph that one device would compute together.

    ``expected_us`` is what that is expected to take, from its capabilities.
    """

    device: str
    operations: tuple[int, ...]
    expected_us: float


class SegmentReport(msgspec.Struct, frozen=True):
    """Operations of the main subgraph that one engine of a device computes in a row.

    ``expected_us`` is what that is expected to take.
    """

    device: str
    engine: str
    operations: tuple[int, ...]
    expected_us: float


class Explanation(msgspec.Struct, frozen=True):
    """All operations of a model, the main subgraph's first.

    They are those that the device would prepare. Of a region that it has no engine for,
    they are the translation, and ``translated`` is its extension.

    ``problem`` is the rule that the model breaks; empty if it is legal. A device that
    is made of several has ``partitions``, in order, and ``left_out`` says which of
    these have no part, and why. ``segments`` are of devices with more than one
    engine, in order. Operations that are in none of such a device's are computed once,
    when the model is prepared. ``unsupported`` are the operators of a file for which
    no model can be made of it, and ``device`` is empty then: none has been asked.
    ``hint`` says what to do about the problem, where that is known. ``hal_hints`` say
    what the device makes of hints of the HAL, ``batching`` how many waiting runs may be
    one, or why none are, where its settings ask for that. What is expected are
    ``are_estimates`` unless the device's capabilities were measured.
    """

    device: str
    problem: str
    operations: tuple[OperationReport, ...]
    partitions: tuple[PartitionReport, ...] = ()
    left_out: dict[str, str] = {}
    segments: tuple[SegmentReport, ...] = ()
    unsupported: tuple[UnsupportedOperator, ...] = ()
    hint: str = ""
    translated: str = ""
    hal_hints: dict[str, str] = {}
    are_estimates: bool = True
    batching: str = ""

    @property
    def is_supported(self) -> bool:
        """Whether the device would run all of the model."""
        return not self.problem and all(o.is_supported for o in self.operations)


async def explain(
    device: Device,
    model: NamedModel | Model,
    version: HalVersion = _NEWEST,
    *,
    extensions: Iterable[Extension] = (),
) -> Explanation:
    """Ask ``device`` for its support of each operation, and say what is missing.

    ``version`` is the HAL's that the model is meant for. ``extensions`` say which of
    their rules an operation breaks, and what their types are called if the model
    itself does not know. A region is explained as it is where the device
    has its engine, and else as what it is translated to.

    :raises InvalidArgumentError: as `NamedModel.knowing` does.
    :raises UnsupportedOperatorError: if it cannot be translated, and has to be.
    :raises AsyncnnError: if the device cannot be asked.
    """
    whole = model.model if isinstance(model, NamedModel) else model
    if not isinstance(whole, Model):
        raise WrongTypeError(
            f"a model of type {type(whole).__name__} cannot be explained",
            hint="asyncnn.load_model reads one from a file",
        )
    region = None
    with suppress(InvalidArgumentError):  # the rule that is broken is named below
        region = region_of(whole)
    if region is not None:
        named = model if isinstance(model, NamedModel) else numbered_ends(model)
        model = await form_for(device.hal, named)
        if region_of(model.model) is not None:
            region = None
        whole = model.model
    names = model.extension_names if isinstance(model, NamedModel) else ()
    known, words = await offload(_named, whole, names, extensions)
    context = _Context(
        model=whole,
        known=known,
        version=version,
        problem=await offload_steps(_finding_broken_rule(whole, version)),
        device=device,
        words=words,
    )
    reports: list[OperationReport] = []
    # Of referenced subgraphs a device says nothing, but each can be asked for as main.
    for number in (None, *range(len(whole.referenced))):
        supported = await context.ask(number)
        reports += await offload_steps(context.reporting(number, supported))
    operations = await offload_steps(_with_culprits(whole, reports))
    explanation = Explanation(
        device.name,
        context.problem,
        operations,
        translated="" if region is None else region.extension,
        hal_hints=hal_hints(device.hal),
        are_estimates=not has_measured_capabilities(device.hal),
    )
    hal = device.hal
    if not explanation.is_supported:
        return explanation
    explanation = await _with_batching(explanation, hal, whole)
    if isinstance(hal, IPlanning):
        plan = await hal.plan(whole, ExecutionPreference.FAST_SINGLE_ANSWER)
        explanation = await offload_steps(_with_plan(explanation, plan))
        shares = await hal.engine_shares_of(whole, plan)
        return await offload(_with_shares, explanation, whole, shares)
    if isinstance(hal, IEngineShares):
        declared = relative_to(device.capabilities, kernel_capabilities(hal))
        own = [(declared, share) for share in await hal.engine_shares(whole)]
        return await offload(_with_shares, explanation, whole, own)
    return explanation


def _named(
    model: Model, names: Iterable[ExtensionNames], extensions: Iterable[Extension]
) -> tuple[Model, Vocabulary]:
    """Return a model with what is known of extensions, and the names of its types."""
    known = Extensions(extensions).resolved(model)
    return known, Vocabulary(model, joined(names, names_in(known)))


async def _with_batching(
    explanation: Explanation, hal: IDevice, model: Model
) -> Explanation:
    if not isinstance(hal, IBatches):
        return explanation
    return replace(explanation, batching=await hal.batching_of(model))


def _with_shares(
    explanation: Explanation,
    model: Model,
    shares: Sequence[tuple[Capabilities, EngineShare]],
) -> Explanation:
    costs, reference = ModelCosts(model), reference_capabilities()
    times: dict[int, tuple[float, ...]] = {}  # by the identity of capabilities
    segments: list[SegmentReport] = []
    operations = list(explanation.operations)
    for declared, share in shares:
        first = operations[share.operations[0]]
        # What a device declares is what its best engine does.
        capabilities = reference if share.reasons else declared
        if id(capabilities) not in times:
            times[id(capabilities)] = costs.of_main(capabilities, chosen_figure(-1))
        expected = sum(map(times[id(capabilities)].__getitem__, share.operations))
        name = first.device or explanation.device
        segments.append(SegmentReport(name, share.engine, share.operations, expected))
        obstacles = share.reasons or ("",) * len(share.operations)
        for position, obstacle in zip(share.operations, obstacles, strict=True):
            report = operations[position]
            operations[position] = replace(
                report, engine=share.engine, obstacle=obstacle
            )
    return replace(explanation, operations=tuple(operations), segments=tuple(segments))


def _with_plan(explanation: Explanation, plan: DevicePlan) -> Steps[Explanation]:
    partitions = tuple(
        PartitionReport(plan.devices[each.device], each.operations, each.expected_us)
        for each in plan.division.partitions
    )
    devices = {
        index: partition.device
        for partition in partitions
        for index in partition.operations
    }
    reasons = plan.division.reasons
    operations: list[OperationReport] = []
    for report in explanation.operations:
        yield
        if report.subgraph is None:
            device, choice = devices[report.index], reasons[report.index]
            report = replace(report, device=device, choice=choice)
        operations.append(report)
    return replace(
        explanation,
        operations=tuple(operations),
        partitions=partitions,
        left_out=plan.refusals,
    )


class _Context(msgspec.Struct, frozen=True):
    """The model to explain, the first rule that it breaks, and who is asked.

    ``known`` is the same model with what is known here of extensions.
    """

    model: Model
    known: Model
    version: HalVersion
    problem: str
    device: Device
    words: Vocabulary

    async def ask(self, number: int | None) -> tuple[bool, ...]:
        model = replace(self.model, main=_subgraph(self.model, number))
        status, supported = await self.device.hal.get_supported_operations_1_3(model)
        if status not in (ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT):
            raise error_for(status, f"no answer of {self.device.name}: {status.name}")
        return supported

    def reporting(
        self, number: int | None, supported: Sequence[bool]
    ) -> Steps[list[OperationReport]]:
        answers = supported or (False,) * len(_subgraph(self.model, number).operations)
        reports: list[OperationReport] = []
        for index, answer in enumerate(answers):
            yield
            reports.append(self._report(number, index, answer))
        return reports

    def _report(
        self, number: int | None, index: int, supported: bool
    ) -> OperationReport:
        subgraph = _subgraph(self.model, number)
        operation = subgraph.operations[index]
        report = OperationReport(
            subgraph=number,
            index=index,
            type=self.words.operation_type(operation.type),
            main_type=self._main_type(operation, subgraph),
        )
        try:
            since = check_operation(
                operation, subgraph.operands, self.version, self.model.referenced
            )
        except InvalidArgumentError as error:
            cause = self._cause(operation, subgraph)
            return replace(report, cause=cause, reason=error.message)
        report = replace(report, since=since.name)
        if supported and not self.problem:
            return report
        broken = self._broken_rule_of_extension(number, index)
        if broken:
            return replace(report, cause=Cause.SIGNATURE, reason=broken)
        hal = self.device.hal
        if isinstance(hal, OlderDriver) and not self.problem:
            try:
                check_operation(
                    operation, subgraph.operands, hal.version, self.model.referenced
                )
            except InvalidArgumentError as error:
                return replace(report, cause=Cause.VERSION, reason=error.message)
        cause, reason = self._obstacle(operation)
        return replace(report, cause=cause, reason=reason)

    def _cause(self, operation: Operation, subgraph: Subgraph) -> Cause:
        try:
            check_operation(
                operation, subgraph.operands, _NEWEST, self.model.referenced
            )
        except InvalidArgumentError:
            return Cause.SIGNATURE
        return Cause.VERSION

    def _broken_rule_of_extension(self, number: int | None, index: int) -> str:
        if self.problem:
            return ""
        subgraph = _subgraph(self.known, number)
        try:
            check_extended_operation(self.known, subgraph, subgraph.operations[index])
        except InvalidArgumentError as error:
            return error.message
        except GeneralFailureError:
            pass  # of an extension that is not known here
        return ""

    def _obstacle(self, operation: Operation) -> tuple[Cause, str]:
        """Say what stands in the way of an operation that is legal by itself."""
        if is_extension_type(operation.type):
            missing = self._missing_extension(operation.type)
            if missing:
                return Cause.EXTENSION, missing
        if self.problem:
            return Cause.MODEL, f"the model is refused: {self.problem}"
        name = self.words.operation_type(operation.type)
        return Cause.KERNEL, f"the device cannot compute {name} as it is used here"

    def _missing_extension(self, type_: int) -> str:
        name = self.words.extension_of(type_)
        if name is None:
            prefix = type_ >> EXTENSION_TYPE_BITS
            return f"the model names no extension of prefix {prefix}"
        _, offered = self.device.hal.get_supported_extensions()
        if name in {extension.name for extension in offered}:
            return ""
        return f"the device does not have the extension {name}"

    def _main_type(self, operation: Operation, subgraph: Subgraph) -> str:
        for index in (*operation.inputs, *operation.outputs):
            if 0 <= index < len(subgraph.operands):
                type_ = subgraph.operands[index].type
                if is_tensor(type_) or is_extension_type(type_):
                    return self.words.operand_type(type_)
        return ""


def _subgraph(model: Model, number: int | None) -> Subgraph:
    return model.main if number is None else model.referenced[number]


def _finding_broken_rule(model: Model, version: HalVersion) -> Steps[str]:
    try:
        yield from validating(model, version)
    except InvalidArgumentError as error:
        return error.message
    return ""


def _with_culprits(
    model: Model, reports: Sequence[OperationReport]
) -> Steps[tuple[OperationReport, ...]]:
    culprits: dict[int, OperationReport] = {}
    for report in reports:
        if report.subgraph is not None and not report.is_supported:
            culprits.setdefault(report.subgraph, report)
    blamed: list[OperationReport] = []
    for report in reports:
        yield
        blamed.append(_with_culprit(model, report, culprits))
    return tuple(blamed)


def _with_culprit(
    model: Model, report: OperationReport, culprits: dict[int, OperationReport]
) -> OperationReport:
    if report.cause is not Cause.KERNEL:
        return report
    subgraph = _subgraph(model, report.subgraph)
    for index in subgraph.operations[report.index].inputs:
        operand = subgraph.operands[index]
        if operand.lifetime == OperandLifeTime.SUBGRAPH:
            culprit = culprits.get(operand.location.offset)
            if culprit is not None:
                reason = f"it runs {culprit.place} ({culprit.type}), not supported"
                return replace(report, cause=Cause.SUBGRAPH, reason=reason)
    return report
