"""/metrics against the rows, read with Prometheus' own parser: the same numbers, every label, whatever is in a name."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from caches.metrics import SECONDS, CachesCollector
from caches.models import PoolLoop, SourceConnection, Transfer, Webhook, WebhookDelivery
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Cluster, NodePool
from controlplane.operations.models import Operation
from tests import factories
from tests.factories import MIB
from tests.selectors.fleets import SEEDS, counted, random_fleet, size_and_id

pytestmark = pytest.mark.django_db
Labels = frozenset[tuple[str, str]]


def families(client: Client) -> dict[str, Metric]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    found = {family.name: family for family in text_string_to_metric_families(answer.content.decode())}
    assert all(name.startswith("hearth_") for name in found)
    return found


def values(client: Client, name: str) -> dict[Labels, float]:
    """The samples of one name by their labels; each is there once."""
    samples = [s for family in families(client).values() for s in family.samples if s.name == name]
    found = {frozenset(sample.labels.items()): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def labels(**named: str) -> Labels:
    return frozenset(named.items())


def test_a_fresh_control_plane_has_every_family_and_no_sample(client: Client) -> None:
    found = families(client)
    # The parser drops the ending of counters.
    assert set(found) == {
        "hearth_coverage_required",
        "hearth_coverage_ready",
        "hearth_coverage_unknown",
        "hearth_coverage_required_bytes",
        "hearth_coverage_ready_bytes",
        "hearth_entries",
        "hearth_moved_bytes",
        "hearth_transfer_seconds",
        "hearth_transfer_queue_seconds",
        "hearth_loop_lag_seconds",
        "hearth_loop_waiting_seconds",
        "hearth_loop_failing",
        "hearth_operations_active",
        "hearth_webhook_deliveries",
    }
    assert not [sample for family in found.values() for sample in family.samples]
    assert all(family.documentation for family in found.values())


def test_it_is_the_text_form_that_prometheus_asks_for_and_never_cached(client: Client) -> None:
    answer = client.get("/metrics")
    assert answer["Content-Type"] == CONTENT_TYPE_LATEST
    assert "no-store" in answer["Cache-Control"]
    assert client.post("/metrics").status_code == 405
    assert client.head("/metrics").status_code == 200


@pytest.mark.parametrize("seed", SEEDS)
def test_coverage_and_entries_of_a_random_fleet_are_what_its_rows_say(client: Client, seed: int) -> None:
    fleet = random_fleet(seed, timezone.now())
    names = ("required", "ready", "unknown", "required_bytes", "ready_bytes")
    found = {name: values(client, f"hearth_coverage_{name}") for name in names}
    expected: dict[str, dict[Labels, float]] = {name: {} for name in names}
    for pool in fleet.pools:
        sharing: dict[Any, list[Any]] = {}
        for pin in fleet.pins_of(pool):
            sharing.setdefault(size_and_id(pin)[1], []).append(pin)
        for pins in sharing.values():
            one, version = counted(fleet, pool, pins), pins[0].version
            of = labels(
                cluster=pool.cluster.name, pool=pool.name, model=version.full_name, artifact=version.artifact.digest
            )
            numbers = (one.required, one.ready, one.unknown, one.bytes_required, one.bytes_ready)
            for name, number in zip(names, numbers, strict=True):
                expected[name][of] = number
    assert found == expected
    entries: Counter[Labels] = Counter()
    moved: Counter[Labels] = Counter()
    nodes = {node.pk: node for node in fleet.nodes}
    for entry in fleet.entries.values():
        node = nodes[entry.node_id]
        assert node.pool is not None
        place = {"cluster": node.pool.cluster.name, "pool": node.pool.name}
        moved[labels(**place)] += entry.bytes_moved
        if node.lost_at is None and entry.state != EntryState.LOST:
            entries[labels(**place, state=fleet.shown(node, entry), reason=entry.reason)] += 1
    assert values(client, "hearth_entries") == entries
    assert values(client, "hearth_moved_bytes_total") == moved


def test_names_with_quotes_backslashes_and_line_ends_survive(client: Client) -> None:
    nasty = 'v"1"\\n\n\\ ünï 😀 {a="b"} #'
    pool = factories.pool(of=factories.cluster(name="lab"), name="gpu")
    version = factories.version(model="llama", version=nasty)
    factories.pin(of=version, pools=(pool,))
    factories.entry(on=factories.node(of=pool), of=version.artifact)
    [of] = values(client, "hearth_coverage_ready")
    assert version.artifact is not None
    assert of == labels(cluster="lab", pool="gpu", model=f"llama {nasty}", artifact=version.artifact.digest)


def test_pools_of_one_name_in_two_clusters_are_two_series(client: Client) -> None:
    for name in ("east", "west"):
        pool = factories.pool(of=factories.cluster(name=name), name="gpu")
        factories.entry(on=factories.node(of=pool, name="n1"))
    assert values(client, "hearth_entries") == {
        labels(cluster=name, pool="gpu", state="Ready", reason=""): 1.0 for name in ("east", "west")
    }


def test_huge_numbers_of_bytes_are_not_rounded_to_zero_or_infinity(client: Client) -> None:
    for _ in range(2):
        factories.entry(on=factories.node(of=factories.pool()), bytes_moved=2**62)
    assert set(values(client, "hearth_moved_bytes_total").values()) == {float(2**62)}


def transfer(seconds: float, queued: float = 0.0, store: str = "lake") -> None:
    connection_ = SourceConnection.objects.filter(name=store).first() or factories.connection(name=store)
    Transfer.objects.create(
        entry=factories.entry(),
        connection=connection_,
        bytes_moved=MIB,
        seconds=seconds,
        queued_seconds=queued,
        ended_at=timezone.now(),
    )


def test_a_histogram_is_cumulative_includes_its_bounds_and_ends_in_infinity(client: Client) -> None:
    for seconds in (0.0, 1.0, 1.5, 60.0, 7200.0, 7200.5, 100_000.0):
        transfer(seconds)
    buckets = {dict(of)["le"]: value for of, value in values(client, "hearth_transfer_seconds_bucket").items()}
    assert list(buckets) == [*(str(float(le)) for le in SECONDS), "+Inf"]
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets["1.0"], buckets["2.0"], buckets["60.0"], buckets["7200.0"], buckets["+Inf"]) == (2, 3, 4, 5, 7)
    assert values(client, "hearth_transfer_seconds_count") == {labels(connection="lake"): 7}
    assert values(client, "hearth_transfer_seconds_sum") == {labels(connection="lake"): 114_463.0}


def test_each_source_has_its_own_histograms(client: Client) -> None:
    transfer(5.0, 3.0, "lake")
    transfer(50.0, 30.0, "attic")
    assert values(client, "hearth_transfer_queue_seconds_sum") == {
        labels(connection="lake"): 3.0,
        labels(connection="attic"): 30.0,
    }


def loop(pool: NodePool | None = None, **fields: Any) -> Labels:
    pool = pool or factories.pool()
    PoolLoop.objects.create(pool=pool, **fields)
    return labels(cluster=pool.cluster.name, pool=pool.name)


def test_the_loops_lag_is_unknown_until_a_round_answered_something(client: Client) -> None:
    loop(lag_seconds=None)
    measured = loop(lag_seconds=0.25)
    assert values(client, "hearth_loop_lag_seconds") == {measured: 0.25}


def test_a_loop_waits_since_the_change_that_nobody_answered(client: Client) -> None:
    now = timezone.now()
    waiting = loop(wanted_round=3, done_round=2, wanted_at=now - timedelta(seconds=90))
    done = loop(wanted_round=3, done_round=3, wanted_at=now - timedelta(seconds=90))
    ahead = loop(wanted_round=3, done_round=2, wanted_at=now + timedelta(seconds=90))  # another machine's clock
    never = loop(wanted_round=3, done_round=2, wanted_at=None)
    found = values(client, "hearth_loop_waiting_seconds")
    assert 90 <= found.pop(waiting) < 120
    assert found == {done: 0.0, ahead: 0.0, never: 0.0}


def test_a_loop_that_fails_is_one(client: Client) -> None:
    failing, fine = loop(error="boom"), loop()
    assert values(client, "hearth_loop_failing") == {failing: 1.0, fine: 0.0}


def test_only_operations_that_have_not_ended_are_counted(client: Client) -> None:
    for kind, state in (("PinWarm", "Running"),) * 2 + (("PinWarm", "Succeeded"), ("EntryEvict", "Canceling")):
        Operation.objects.create(
            kind=kind, state=state, subject_type="x", subject_id="1", subject_name="x", started_by="ada"
        )
    assert values(client, "hearth_operations_active") == {
        labels(kind="PinWarm", state="Running"): 2.0,
        labels(kind="EntryEvict", state="Canceling"): 1.0,
    }


def test_announcements_are_counted_by_state(client: Client) -> None:
    hook = Webhook.objects.create(name="pager", url="https://example.org", secret_name="pager")
    for number, state in enumerate(("Pending", "GivenUp", "GivenUp")):
        WebhookDelivery.objects.create(
            webhook=hook, event="entry.failed", dedup_key=f"{number}", payload={}, state=state
        )
    assert values(client, "hearth_webhook_deliveries") == {labels(state="Pending"): 1.0, labels(state="GivenUp"): 2.0}


def test_nothing_of_a_secret_or_an_address_is_exposed(client: Client) -> None:
    Webhook.objects.create(name="pager", url="https://user:pass@example.org/hook", secret_name="pager-key")
    store = factories.connection(name="lake", endpoint="https://lake.internal:9000", secret_name="lake-key")
    factories.pin(of=factories.version(connection=store), pools=(factories.pool(),))
    transfer(5.0)
    text = client.get("/metrics").content.decode()
    assert not [word for word in ("example.org", "pager-key", "lake.internal", "lake-key") if word in text]


def test_registering_asks_the_database_nothing() -> None:
    with CaptureQueriesContext(connection) as captured:
        assert list(CachesCollector().describe()) == []
    assert len(captured) == 0


@pytest.mark.parametrize(
    ("address", "forwarded", "proxies", "status"),
    [
        ("127.0.0.1", None, 0, 200),
        ("127.8.9.10", None, 0, 200),
        ("::1", None, 0, 200),
        ("::ffff:127.0.0.1", None, 0, 200),
        ("10.0.0.7", None, 0, 403),
        ("", None, 0, 403),
        ("127.0.0.1", "203.0.113.9", 0, 403),  # a proxy on this machine speaks for somebody
        ("127.0.0.1", "203.0.113.9", 1, 403),
        ("10.0.0.7", "127.0.0.1", 0, 403),  # anybody can write that
        ("10.0.0.7", "127.0.0.1", 1, 200),
    ],
)
def test_without_a_token_only_this_machine_may_read(
    client: Client, settings: LazySettings, address: str, forwarded: str | None, proxies: int, status: int
) -> None:
    settings.METRICS_TOKEN, settings.TRUSTED_PROXIES = "", proxies
    headers: dict[str, Any] = {"X-Forwarded-For": forwarded} if forwarded else {}
    answer = client.get("/metrics", headers=headers, REMOTE_ADDR=address)
    assert answer.status_code == status
    assert status == 200 or b"HEARTH_METRICS_TOKEN" in answer.content


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("Bearer s3cret-ü", 200),
        ("bearer s3cret-ü", 401),
        ("Bearer s3cret-", 401),
        ("Bearer ", 401),
        ("", 401),
        ("Basic czNjcmV0", 401),
    ],
)
def test_with_a_token_its_bearer_may_read_from_anywhere(
    client: Client, settings: LazySettings, sent: str, status: int
) -> None:
    settings.METRICS_TOKEN = "s3cret-ü"
    answer = client.get("/metrics", headers={"Authorization": sent}, REMOTE_ADDR="203.0.113.9")
    assert answer.status_code == status
    assert status == 200 or (answer["WWW-Authenticate"], b"s3cret" in answer.content) == ("Bearer", False)


def test_a_scrape_changes_nothing_and_survives_a_pool_without_a_cluster_contact(client: Client) -> None:
    pool = factories.pool()
    factories.entry(on=factories.node(of=pool))
    Cluster.objects.update(observed_at=None)
    first = client.get("/metrics").content
    assert client.get("/metrics").content == first
