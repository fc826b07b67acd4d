"""Brute force: five wrong passwords for one name from one address, or fifty from one address, close the door a while.

Failures are audit events (``account.sign-in-failed``), so they are counted over all processes, survive restarts and
can be read by people. One lock per address makes parallel guesses queue up instead of racing the count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection, transaction
from django.utils import timezone

from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor, audit_write

WINDOW = timedelta(minutes=15)
PER_NAME = 5
PER_ADDRESS = 50
_ACTION = "account.sign-in-failed"


@contextmanager
def one_at_a_time(address: str) -> Iterator[None]:
    """Serialize the attempts of one address over all processes."""
    number = int.from_bytes(hashlib.sha256(f"sign-in {address}".encode()).digest()[:8], signed=True)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number])
        yield


def is_locked(*, username: str, address: str) -> bool:
    """True while the address has failed too often within WINDOW. Counting starts over at a successful sign-in."""
    recent = AuditEvent.objects.filter(
        object_type="SignIn", object_id=address, at__gt=timezone.now() - WINDOW
    ).values_list("action", "object_name")
    failures = [name for action, name in recent if action == _ACTION]
    since_success = 0
    for action, name in recent:  # newest first
        if name != username:
            continue
        if action != _ACTION:
            break
        since_success += 1
    return since_success >= PER_NAME or len(failures) >= PER_ADDRESS


def record(*, username: str, address: str, success: bool, request_id: str) -> None:
    """Append the attempt to the audit trail. The password never comes near."""
    audit_write(
        actor=Actor(name=username[:150] or "nobody", via=Via.BROWSER, request_id=request_id),
        action="account.sign-in" if success else _ACTION,
        object_type="SignIn",
        object_id=address,
        object_name=username[:300],
    )
