"""Cold starts, asked for again: what a stamp answers without reading, and that it never hides what changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import time_machine
from django.contrib.messages import constants
from django.contrib.messages.storage.base import Message
from django.contrib.messages.storage.cookie import CookieStorage
from django.db import connection
from django.http import HttpRequest
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.domain.launches.period import hour_of
from caches.domain.launches.words import Mark
from caches.models import Launch, LaunchHour
from caches.services.launches.assembly import launches_assemble
from caches.services.launches.counts import hours_count
from caches.services.launches.ingest import sightings_record
from caches.services.launches.retiming import launches_retime
from controlplane.accounts.models import RoleGrant, User
from controlplane.audit.models import Via
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.models import Cluster, Node
from controlplane.web.polls import release_of
from tests import factories
from tests.domain.launches import mark
from tests.services.launches import put_launches, ready_pod, settle, sighting, take_in
from tests.services.trials import launch_trial

PAGE = "/launches?since=now-24h"
LIVE = {"X-Hearth-Live": "1"}


class Lab:
    """A day of launches, one of them on a node that has a row, at ten minutes past the hour."""

    def __init__(self) -> None:
        self.now = hour_of(timezone.now()) + timedelta(minutes=10)
        self.cluster = factories.cluster(name="lab", observed_at=self.now + timedelta(hours=2))
        pool = factories.pool(of=self.cluster, name="gpu")
        later = self.now + timedelta(hours=2)
        self.node = factories.node(
            of=pool, joined_at=self.now - timedelta(days=9), observed_at=later, reported_at=later
        )

    def fill(self) -> None:
        put_launches(self.cluster, [20.0 + one for one in range(25)], at=self.now - timedelta(hours=5), weights="Hit")
        take_in(ready_pod(self.cluster, "a", 30, at=self.now - timedelta(hours=1), node=self.node))
        settle()


@pytest.fixture
def lab(db: None) -> Lab:
    return Lab()


def tag(client: Client, address: str = PAGE) -> str:
    return str(client.get(address, headers=LIVE)["ETag"])


def content(found: str) -> str:
    return found[3:27]


def asked_again(client: Client, known: str, address: str = PAGE) -> tuple[int, list[str]]:
    """The status, and the statements that it took."""
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(address, headers=LIVE | {"If-None-Match": known})
    return answer.status_code, [str(one["sql"]) for one in queries.captured_queries]


def read(statements: list[str]) -> bool:
    return any("sketch" in one for one in statements)


def test_nothing_is_read_while_nothing_changed(lab: Lab, ada: Client) -> None:
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
    with time_machine.travel(lab.now + timedelta(minutes=40), tick=False):
        status, statements = asked_again(ada, known)
        assert (status, read(statements)) == (304, False)
        assert sum("caches_launch" in one for one in statements) == 1
        assert content(tag(ada)) == content(known), "and so would have said who reads"


def test_who_changes_nothing_that_is_seen_is_read_for_once(lab: Lab, ada: Client) -> None:
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
        _audit(lab, object_type="Token")
        answer = ada.get(PAGE, headers=LIVE | {"If-None-Match": known})
        assert (answer.status_code, answer["ETag"] != known) == (304, True)
        assert not read(asked_again(ada, answer["ETag"])[1])


def _audit(lab: Lab, object_type: str = "pin") -> None:
    actor = Actor(name="ada", via=Via.BROWSER, request_id="r")
    audit_write(actor=actor, action="x.y", object_type=object_type, object_id="1", object_name="llama v1")


def _seen(lab: Lab) -> None:
    sightings_record(items=[sighting(lab.cluster, "new", mark(Mark.CREATED, 0), at=lab.now - timedelta(minutes=3))])


def _assembled(lab: Lab) -> None:
    _seen(lab)
    launches_assemble()


def _counted(lab: Lab) -> None:
    _assembled(lab)
    hours_count()


def _ended(lab: Lab) -> None:
    """Of a launch that is counted already, something else is known."""
    take_in(sighting(lab.cluster, "a", mark(Mark.FIRST_SUCCESS, 3600), at=lab.now - timedelta(hours=2)))


def _gone(lab: Lab) -> None:
    Launch.objects.filter(pod_uid="a").delete()
    LaunchHour.objects.create(cluster=lab.cluster, start=hour_of(lab.now - timedelta(hours=1)), dirty_at=lab.now)
    hours_count()


CHANGES: dict[str, Callable[[Lab], object]] = {
    "a launch was seen": _seen,
    "it was assembled": _assembled,
    "it was counted": _counted,
    "of one more is known": _ended,
    "one is gone": _gone,
    "somebody changed a pin": _audit,
    "its node's row is gone": lambda lab: Node.objects.filter(pk=lab.node.pk).delete(),
    "the cluster has another name": lambda lab: Cluster.objects.filter(pk=lab.cluster.pk).update(name="den"),
    "a trial runs": lambda lab: launch_trial(lab.cluster, factories.version(), launches=[], state="Running"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_shown(lab: Lab, ada: Client, change: str) -> None:
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
        assert asked_again(ada, known)[0] == 304
        CHANGES[change](lab)
        assert content(tag(ada)) != content(known), "else this shows nothing"
        assert asked_again(ada, known)[0] == 200


def test_while_phases_wait_to_be_made_again_it_is_read(lab: Lab, ada: Client) -> None:
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
        Launch.objects.filter(pod_uid="a").update(rule=1)
        assert read(asked_again(ada, known)[1]), "no hour tells of it when they change"
        assert launches_retime() == 1
        assert not read(asked_again(ada, tag(ada))[1])


@pytest.mark.parametrize(
    ("address", "later"),
    [
        (PAGE, timedelta(minutes=55)),  # another hour
        ("/launches?since=now-30m", timedelta(minutes=40)),
        ("/launches?since=now-5h&until=now-30m", timedelta(minutes=1)),
        ("/launches?since=now-5h&until=now-2h&compare=previous", timedelta(minutes=20)),
        ("/launches?since=now-400d", timedelta(minutes=20)),
        ("/launches?since=now-24h&tz=Asia/Kolkata&trial=Only", timedelta(minutes=20)),
        ("/launches?since=now-24h&endpoint=lab/none", timedelta(minutes=20)),
    ],
)
def test_as_time_goes_on_it_says_what_who_reads_would_say(
    lab: Lab, ada: Client, address: str, later: timedelta
) -> None:
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada, address)
    with time_machine.travel(lab.now + later, tick=False):
        status, _ = asked_again(ada, known, address)
        assert (status == 304) == (content(tag(ada, address)) == content(known))


def test_a_watcher_that_fell_silent_is_told_of(lab: Lab, ada: Client) -> None:
    Cluster.objects.update(observed_at=lab.now)
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
        assert asked_again(ada, known)[0] == 304
    with time_machine.travel(lab.now + timedelta(minutes=30), tick=False):
        assert asked_again(ada, known)[0] == 200
        assert b"Old data:" in ada.get(PAGE, headers=LIVE).content


def test_who_may_see_less_by_now_is_read_for(lab: Lab, ada: Client) -> None:
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
        ada_user = User.objects.get(username="ada")
        RoleGrant.objects.filter(user=ada_user).delete()
        RoleGrant.objects.create(user=ada_user, role="Viewer", target="lab.other")
        status, statements = asked_again(ada, known)
        assert (status, read(statements)) == (200, True)


def test_who_sees_a_part_of_the_fleet_is_read_for_and_nobody_has_anothers_stamp(lab: Lab, ada: Client) -> None:
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
        part, whole = Client(), Client()
        part.force_login(factories.user(username="bob", role="Viewer", target="lab.gpu"))
        whole.force_login(factories.user(username="eve", role="Viewer"))
        assert len(tag(part)) < len(known)
        assert read(asked_again(whole, known)[1])


def test_what_a_person_is_told_is_told(lab: Lab, ada: Client) -> None:
    """And goes with the next picture, as it always did."""
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
        storage = CookieStorage(HttpRequest())
        said = storage._encode([Message(constants.SUCCESS, "It is done.")])  # type: ignore[attr-defined]  # not in stubs
        ada.cookies["messages"] = str(said)
        answer = ada.get(PAGE, headers=LIVE | {"If-None-Match": known})
        assert (answer.status_code, b"It is done." in answer.content) == (200, True)
        told = answer["ETag"]
        assert len(told) < len(known)
        assert asked_again(ada, told)[0] == 200


def test_while_hours_wait_it_is_read(lab: Lab, ada: Client) -> None:
    with time_machine.travel(lab.now, tick=False):
        lab.fill()
        known = tag(ada)
        LaunchHour.objects.create(cluster=lab.cluster, start=hour_of(lab.now), dirty_at=lab.now)
        status, statements = asked_again(ada, known)
        assert (status, read(statements)) == (304, True)


def test_a_release_is_known_by_its_contents_wherever_and_whenever_it_was_installed(tmp_path: Path) -> None:
    def install(name: str, files: dict[str, str], at: int) -> str:
        for path, content in files.items():
            made = tmp_path / name / path
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(content)
            os.utime(made, (at, at))
        return release_of(tmp_path / name)

    files = {"templates/pages/a.html": "1", "caches/b.py": "2", "routing/c.py": "3"}
    first = install("first", files, 0)
    assert install("copied", files, 9) == first
    for number, other in enumerate((
        {**files, "caches/b.py": "4"},
        {**files, "routing/c.py": "4"},
        {"templates/a.html": "1", "caches/b.py": "2", "routing/c.py": "3"},
        {**files, "caches/b.py": "", "caches/d.py": "2"},
    )):  # fmt: skip
        assert install(f"other-{number}", other, 0) != first
