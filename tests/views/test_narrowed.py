"""Pages and exports of people limited to one pool name nothing of other pools."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from controlplane.operations.models import Operation
from tests import factories
from tests.selectors.reach_world import Reach, reach_world
from tests.views.reading import calm

HIDDEN = ("far.", "secret", "n-other", "other pin", "other entry", "other node", "other Token")


@pytest.fixture
def world(db: None) -> Reach:
    return reach_world()


@pytest.fixture
def local(client: Client, world: Reach) -> Client:
    client.force_login(factories.user(role="Operator", target=world.mine.full_name))
    return client


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/operations",
        "/operations.csv",
        "/operations.json",
        "/audit",
        "/audit.csv",
        "/pins",
        "/pins.csv",
        "/fleet",
        "/entries",
        "/overview.csv",
        "/search?q=pin",
        "/search?q=far",
        "/search?q=other",
    ],
)
def test_it_names_nothing_of_other_pools(local: Client, path: str) -> None:
    answer = local.get(path)

    assert answer.status_code == 200
    text = calm(answer.content).replace(f'value="{path.rpartition("=")[2]}"', "")
    assert not [word for word in HIDDEN if word in text]


def test_it_counts_what_it_shows(local: Client) -> None:
    answer = local.get("/operations")

    assert answer.context["operations_table"].page.paginator.count == 4


def test_it_has_no_page_for_a_hidden_operation(local: Client, world: Reach) -> None:
    hidden = Operation.objects.get(subject_name=world.other.full_name)
    url = reverse("operation", args=[hidden.pk])

    assert local.get(url).status_code == 404
    assert local.post(f"{url}/cancel").status_code == 404
    assert Operation.objects.get(pk=hidden.pk).state == "Pending"


def test_it_says_that_a_pin_has_pools_which_are_not_shown(local: Client, world: Reach) -> None:
    text = local.get(reverse("pin", args=[world.wide.pk])).content.decode()

    assert "near.gpu" in text and "and others that you may not see" in text and "secret" not in text
