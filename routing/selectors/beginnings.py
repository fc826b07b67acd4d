"""What is known of how requests begin: the sums that hot sets follow from."""

from __future__ import annotations

from controlplane.serving.models import Variant
from routing.domain.hotset import FEWEST
from routing.models import RoutedVariant


def heaviest_key(variant: Variant) -> float:
    """The part of the requests, of late, that one key had at most: of the beginnings that are not passed over as hot
    the most frequent one's. 1 where too few were counted to tell, as of keys that clients name themselves."""
    row = RoutedVariant.objects.filter(variant=variant).only("counted", "hot").first()
    found = row.counted.get("sum") if row is not None else None
    if row is None or not found or found["requests"] < FEWEST:
        return 1.0
    most = max((count for digest, count in found["counts"].items() if digest not in row.hot), default=1.0)
    return float(min(1.0, most / found["requests"]))
