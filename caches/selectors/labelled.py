"""A pin's selector of nodes as a condition of the database, for what is too much to look at one by one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping

from django.db.models import Q

from caches.domain.demand import alternatives


def labelled(selector: Mapping[str, str]) -> list[Q]:
    """Conditions of an entry whose node the selector takes: the same nodes as domain.demand.selects."""
    return [
        functools.reduce(operator.or_, (Q(node__labels__contains={name: one}) for one in alternatives(value)))
        for name, value in selector.items()
    ]
