"""What routers say of instances, for whoever registers to hear it: which requests they got, and when one first did
answer. Routing does not know who listens, and the listeners do not know routing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Answered:
    """``requests`` were sent to the instance ``uid`` since the last word of it; ``first_at`` is when it first answered
    one with success, as a router saw it, None where nothing is said of that."""

    uid: str
    requests: int = 0
    first_at: datetime | None = None


AnswersListener = Callable[[Sequence[Answered]], object]
_listeners: list[AnswersListener] = []


def register_answers_listener(listener: AnswersListener) -> None:
    """Called once from an AppConfig.ready(). The listener runs in the transaction that takes the figures in: what it
    adds up is added once."""
    _listeners.append(listener)


def tell_answers(answers: Sequence[Answered]) -> None:
    """Tell the listeners now; nothing to say tells nobody."""
    if answers:
        for listener in _listeners:
            listener(answers)
