"""Asking again: only the changing part, and 304 while nothing changed."""

from __future__ import annotations

from datetime import timedelta

import time_machine
from django.test import Client
from django.utils import timezone

from caches.models import CacheEntry
from controlplane.clusters.models import Cluster
from tests.views.conftest import Stage

LIVE = {"X-Hearth-Live": "1"}


def test_it_answers_with_the_changing_part_alone(stage: Stage, victor: Client) -> None:
    whole = victor.get("/fleet")
    part = victor.get("/fleet", headers=LIVE)
    assert b'<div id="page"' in part.content and b'<nav class="nav"' not in part.content
    assert len(part.content) < len(whole.content)
    assert part["X-Hearth-As-Of"].endswith("Z")
    assert "X-Hearth-Live" in part["Vary"]


def test_it_says_304_while_nothing_changed_although_time_passed(stage: Stage, olga: Client) -> None:
    address = f"/nodes/{stage.nodes[0].id}"
    first = olga.get(address, headers=LIVE)
    with time_machine.travel(timezone.now() + timedelta(seconds=7), tick=False):
        again = olga.get(address, headers=LIVE | {"If-None-Match": first["ETag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert again["ETag"] == first["ETag"]
    assert again["X-Hearth-As-Of"] > first["X-Hearth-As-Of"]


def test_it_sends_the_part_again_when_a_byte_arrived(stage: Stage, victor: Client) -> None:
    address = f"/nodes/{stage.nodes[1].id}"
    first = victor.get(address, headers=LIVE)
    CacheEntry.objects.filter(pk=stage.downloading.pk).update(bytes_done=60 * 1024 * 1024)
    again = victor.get(address, headers=LIVE | {"If-None-Match": first["ETag"]})
    assert again.status_code == 200
    assert b"60.0 MiB of 100 MiB" in again.content


def test_it_notices_that_a_node_fell_silent_without_any_write(stage: Stage, victor: Client) -> None:
    first = victor.get("/fleet/lab.gpu", headers=LIVE)
    with time_machine.travel(timezone.now() + timedelta(seconds=600), tick=False):
        again = victor.get("/fleet/lab.gpu", headers=LIVE | {"If-None-Match": first["ETag"]})
    assert again.status_code == 200
    assert again.content.count(b"Last known: Ready.") == 4


def test_it_says_why_data_is_old(stage: Stage, victor: Client) -> None:
    Cluster.objects.update(observed_at=timezone.now() - timedelta(minutes=9))
    page = victor.get("/").content.decode()
    assert 'data-stale="the watcher last heard from lab at ' in page
    assert "What you see may no longer be true." in page
    Cluster.objects.update(observed_at=timezone.now(), error="connection refused")
    assert "lab cannot be watched: connection refused" in victor.get("/").content.decode()


def test_it_does_not_refresh_pages_on_which_people_type(stage: Stage, olga: Client) -> None:
    for address in ("/pins/new", "/register", f"/entries/{stage.loose.id}/evict"):
        assert 'data-live="off"' in olga.get(address).content.decode()
    assert 'data-live="on"' in olga.get("/").content.decode()
