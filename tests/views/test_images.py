"""Image pages: what is known of a reference is said, and what happened to it since stands out."""

from __future__ import annotations

from django.test import Client
from django.utils import timezone

from caches import charts
from caches.models import Image, Pin
from caches.selectors.matrix import pool_matrix
from caches.views.fleet import HEATMAP_LINKS
from tests import factories
from tests.views.heatmap import unpacked
from tests.views.reading import Page

OTHER = "sha256:" + "f" * 64


def test_it_says_why_an_image_cannot_be_used(db: None, victor: Client) -> None:
    image = factories.image(artifact=None, state="Refused", code="source:user:denied", message="No.", next_step="Ask.")

    page = Page(victor.get(f"/images/{image.pk}").content)

    for words in ("It was refused.", "No.", "Ask.", "source:user:denied"):
        assert words in page.text
    assert "unpacked" not in page.text
    assert "No." in Page(victor.get("/images").content).text


def test_it_shows_that_a_tag_moved_and_offers_what_it_names_now(db: None, olga: Client) -> None:
    image = factories.image(moved_to=OTHER, check_message="It is down.")
    newer = factories.image(reference=image.reference)

    response = olga.get(f"/images/{image.pk}")

    page = Page(response.content)
    for words in ("The tag has moved.", OTHER, "It is down.", newer.artifact.digest):  # type: ignore[union-attr]
        assert words in page.text
    offered = next(one.attrs["href"] for one in page.page.all("a") if "Register what it names now" in one.text)
    assert image.reference in olga.get(offered).content.decode()
    listed = Page(olga.get("/images").content).text
    assert "Moved" in listed and "Matches" in listed


def test_it_shows_who_revoked_it_and_why(db: None, olga: Client, victor: Client) -> None:
    image = factories.image()
    same = factories.image(artifact=image.artifact)
    assert same.reference in Page(olga.get(f"/images/{image.pk}/revoke").content).text

    olga.post(f"/images/{image.pk}/revoke", {"reason": "CVE-1"})

    page = Page(victor.get(f"/images/{same.pk}").content)
    assert "Its digest was revoked" in page.text and "olga" in page.text and "CVE-1" in page.text
    assert "Revoked" in Page(victor.get("/images?revoked=true").content).text
    olga.post(f"/images/{same.pk}/restore")
    assert Image.objects.get(pk=image.pk).revoked_at is None


def test_it_keeps_a_viewer_from_everything_but_reading(db: None, victor: Client) -> None:
    image = factories.image()

    page = Page(victor.get(f"/images/{image.pk}").content)

    assert "Revoke" not in page.text and "Delete" not in page.text
    for address in ("/images/new", f"/images/{image.pk}/revoke", f"/images/{image.pk}/delete"):
        assert victor.get(address).status_code == 403, address


def test_it_tells_wrong_input_at_its_field_and_deletes_nothing_by_mistake(db: None, olga: Client) -> None:
    image = factories.image()

    refused = olga.post("/images/new", {"reference": "Not One"})
    assert refused.status_code == 400 and "lower case letters" in refused.content.decode()
    assert olga.post(f"/images/{image.pk}/delete", {"confirm": "other"}).status_code == 400
    assert olga.post(f"/images/{image.pk}/revoke", {"reason": " "}).status_code == 400
    assert Image.objects.filter(revoked_at=None).count() == 1


def test_it_has_no_page_for_an_image_that_is_gone(db: None, victor: Client) -> None:
    image = factories.image()
    address = f"/images/{image.pk}"
    image.delete()

    response = victor.get(address)

    assert response.status_code == 404 and "There is no image" in response.content.decode()


def test_a_pin_of_an_image_alone_says_so_and_shows_its_copies(db: None, victor: Client) -> None:
    pool, image = factories.pool(of=factories.cluster(type="Kubernetes")), factories.image()
    pin = factories.pin(of=factories.version(image=image), pools=(pool,), artifacts=["Image"])
    factories.entry(on=factories.node(of=pool, name="holder"), of=image.artifact, state="Ready")

    page = Page(victor.get(f"/pins/{pin.pk}").content)
    assert f"Warms the image {image.reference}" in page.text and "1 of 1 copies ready" in page.text
    assert "holder" in page.text
    assert f"only the image {image.reference}" in Page(victor.get("/pins").content).text
    heatmap = Page(victor.get(f"/fleet/{pool.full_name}").content).text
    assert "Nodes, versions and images" in heatmap and "Of images 1 of 1 copies are held." in heatmap


def test_images_have_their_own_coverage_beside_weights(db: None, victor: Client) -> None:
    pool = factories.pool(of=factories.cluster(type="Kubernetes"))
    image = factories.image(reference="registry.example/engine:v1")
    one, other = factories.node(of=pool, name="n1"), factories.node(of=pool, name="n2")
    version = factories.version(image=image)
    factories.pin(of=version, pools=(pool,), artifacts=["Weights", "Image"])
    factories.entry(on=one, of=image.artifact)
    factories.entry(on=other, of=version.artifact)

    answer = victor.get(f"/fleet/{pool.full_name}")
    page = Page(answer.content)
    assert "1 of 2 copies ready" in page.text and "1 of 2 of images" in page.text
    assert "Nodes, versions and images" in page.text and "Of images 1 of 2 copies are held." in page.text
    assert image.reference in answer.content.decode() and version.full_name in answer.content.decode()
    for node, weights, images in ((one, 0, 1), (other, 1, 0)):
        said = Page(victor.get(f"/nodes/{node.pk}").content).text
        assert f"{weights} of 1 wanted versions ready" in said and f"{images} of 1 wanted images held" in said


def test_it_says_for_which_endpoints_it_is_kept(db: None, victor: Client) -> None:
    image, (one, other) = factories.image(), (factories.endpoint(name="chat"), factories.endpoint(name="code"))
    pool = factories.pool(of=one.cluster)
    factories.pin(of=factories.version(image=image), pools=(pool,), artifacts=["Image"], image=image, endpoint=one)
    factories.pin(
        of=factories.version(),
        pools=(pool,),
        artifacts=["Image"],
        image=image,
        endpoint=other,
        removed_at=timezone.now(),
    )
    page = Page(victor.get(f"/images/{image.pk}").content)
    assert f"Kept for the endpoint {one.full_name} ." in page.text and other.full_name not in page.text
    assert page.root.one("a", href=f"/endpoints/{one.pk}").text == one.full_name
    for_nobody = ({"revoked_at": timezone.now()}, {"revoked_at": None})
    for change in for_nobody:
        Image.objects.filter(pk=image.pk).update(**change)
        assert "Kept for" not in Page(victor.get(f"/images/{image.pk}").content).text, change
        Pin.objects.get(endpoint=one).pools.clear()  # one without a pool holds nothing


def test_a_digest_in_a_name_takes_no_room_on_pages_and_stands_whole_where_somebody_looks(
    db: None, victor: Client
) -> None:
    pool = factories.pool(of=factories.cluster(type="Kubernetes"))
    node = factories.node(of=pool)
    name = f"127.0.0.1:24228/walk/server@sha256:{'ab' * 32}"
    image = factories.image(reference=name)
    factories.pin(of=factories.version(image=image), pools=(pool,), artifacts=["Image"])
    factories.entry(on=node, of=image.artifact)
    short = "127.0.0.1:24228/walk/server@sha256:abababababab…"

    table = Page(victor.get("/images").content).root.one("table")
    assert short in table.text and name in [one.attrs.get("title") for one in table.walk()]
    shown = Page(victor.get(f"/nodes/{node.pk}").content)
    assert short in shown.root.one("ul", id="disk-legend").text
    assert {name} <= {one.attrs.get("title") for one in shown.root.walk()}, "what it holds"
    heat = charts.coverage_heatmap(pool_matrix(pool, now=timezone.now()), links=HEATMAP_LINKS)
    assert heat["layout"]["xaxis"]["ticktext"] == ["server@sha256:abababababab…"]
    assert unpacked(heat)["hovertext"][0][0].startswith(f"<b>{name}</b>"), "and in full where it is asked for"
