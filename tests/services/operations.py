"""Operations in every state, and handlers that do what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID, uuid4

from controlplane.audit.models import Via
from controlplane.audit.services import Actor
from controlplane.errors import Permanent
from controlplane.operations import services
from controlplane.operations.handlers import OperationHandler
from controlplane.operations.models import Operation, OperationKind, OperationState
from controlplane.operations.services import TargetSpec

KIND = OperationKind.MODEL_RECHECK
OLGA = Actor(name="olga", via=Via.API, request_id="request-1")
ERROR = Permanent("version:source:gone", "No such bucket.", reason="SourceUnavailable", next_step="Make it.")


def started(*, subject: str = "", targets: Iterable[TargetSpec] = (), kind: OperationKind = KIND) -> Operation:
    """A Pending operation on a subject of its own."""
    return services.operation_start(
        actor=OLGA,
        kind=kind,
        subject_type="version",
        subject_id=subject or str(uuid4()),
        subject_name="llama v1",
        params={"page": 3},
        targets=targets,
    )


def in_state(state: OperationState, **fields: object) -> Operation:
    """An operation that came to this state by the services alone."""
    made = started(**fields)  # type: ignore[arg-type]
    pk = made.pk
    if state != OperationState.PENDING:
        services.operation_run(operation_id=pk)
    if state in (OperationState.CANCELING, OperationState.CANCELED):
        services.operation_cancel(actor=OLGA, operation_id=pk)
    if state == OperationState.CANCELED:
        services.operation_acknowledge(operation_id=pk)
    if state == OperationState.SUCCEEDED:
        services.operation_succeed(operation_id=pk)
    if state == OperationState.FAILED:
        services.operation_fail(operation_id=pk, error=ERROR)
    made.refresh_from_db()
    assert made.state == state
    return made


class Script:
    """A handler whose steps come one after the other from a list: an answer, an error to raise, or a call."""

    def __init__(self, *outcomes: bool | Exception | Callable[[UUID], bool]) -> None:
        self.outcomes = list(outcomes)
        self.stepped: list[UUID] = []
        self.heard: list[str] = []

    def step(self, operation_id: UUID) -> bool:
        self.stepped.append(operation_id)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome(operation_id) if callable(outcome) else outcome

    def handler(self, idle_seconds: float = 10) -> OperationHandler:
        return OperationHandler(
            step=self.step,
            canceled=lambda operation, actor: self.heard.append(f"canceled {operation.state} by {actor.name}"),
            retried=lambda operation, actor: self.heard.append(f"retried {operation.retry_of_id} by {actor.name}"),
            idle_seconds=idle_seconds,
        )
