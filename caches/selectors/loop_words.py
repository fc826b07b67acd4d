"""What a person does about a round of the control loop that did not get through."""

from __future__ import annotations

# The first that is found in the error decides. Sentences that say what to do themselves need nothing more.
_STEPS = (
    ("HEARTH_AGENT_IMAGE", ""),
    ("keeps changing", ""),
    ("Throttled:", "The cluster asks for patience; it is asked again by itself."),
    ("Unreachable:", "Look whether the cluster runs and its address is right; it is asked again every 30 seconds."),
    ("Refused:", "Look at the rights and credentials of Hearth's account there: asking again alone changes nothing."),
    ("could not be applied", "Look at the rights of Hearth's account and at what refused it; it is tried again."),
    ("secret", "Put the secret in place; it is read again with the next round."),
)
_OTHERWISE = "It is tried again every 30 seconds; if it stays, look at the worker's log."


def next_step_of(error: str) -> str:
    """A sentence, "" where the error says it itself or there is no error."""
    if not error:
        return ""
    return next((step for word, step in _STEPS if word in error), _OTHERWISE)
