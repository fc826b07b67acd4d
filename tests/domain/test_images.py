"""References to images, as people write them."""

from __future__ import annotations

import pytest

from caches.domain.images import LONGEST_REFERENCE, NotAReference, parse_reference

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("vllm", "", "vllm", "latest", ""),
        ("vllm/vllm-openai:v0.9.1", "", "vllm/vllm-openai", "v0.9.1", ""),
        ("registry.example/a/b/c:Tag_1.2-x", "registry.example", "a/b/c", "Tag_1.2-x", ""),
        ("Registry.Example:5000/a", "registry.example:5000", "a", "latest", ""),
        ("localhost/a:1", "localhost", "a", "1", ""),
        ("127.0.0.1:5000/a:1", "127.0.0.1:5000", "a", "1", ""),
        ("[::1]:5000/a:1", "[::1]:5000", "a", "1", ""),
        ("a.b:1", "", "a.b", "1", ""),  # no slash: not a registry
        ("localhost:1", "", "localhost", "1", ""),
        (f"a@{DIGEST}", "", "a", "", DIGEST),
        (f"registry.example/a:v1@{DIGEST}", "registry.example", "a", "v1", DIGEST),
        ("  a__b/c--d:_x  ", "", "a__b/c--d", "_x", ""),
    ],
)
def test_it_takes_a_reference_apart(text: str, registry: str, repository: str, tag: str, digest: str) -> None:
    found = parse_reference(text)

    assert (found.registry, found.repository, found.tag, found.digest) == (registry, repository, tag, digest)
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "characters"),
        ("   ", "characters"),
        ("a" * (LONGEST_REFERENCE + 1), "characters"),
        ("https://registry.example/a", "registry"),
        ("Vllm", "lower case"),
        ("a b", "lower case"),
        ("a//b", "lower case"),
        ("/a", "lower case"),
        ("a/", "lower case"),
        ("../a", "registry"),
        ("a/../b", "lower case"),
        ("a:", "tag"),
        ("a:-x", "tag"),
        ("a:x/y", "registry"),
        ("a:" + "x" * 129, "tag"),
        ("a@", "digest"),
        ("a@sha256:abc", "digest"),
        (f"a@{DIGEST.upper()}", "digest"),
        (f"a@{DIGEST}@{DIGEST}", "digest"),
        ("a@sha512:" + "ab" * 64, "digest"),
        ("registry.example:port/a", "registry"),
        ("user:pass@registry.example/a", "digest"),
        ("a\nb", "lower case"),
        ("gpu-modèle", "lower case"),
    ],
)
def test_it_refuses_what_cannot_name_an_image(text: str, why: str) -> None:
    with pytest.raises(NotAReference, match=why):
        parse_reference(text)


def test_it_tells_nodes_the_digest_and_never_the_tag() -> None:
    assert parse_reference("registry.example/a:latest").by_digest(DIGEST) == f"registry.example/a@{DIGEST}"
    assert parse_reference("a:1").by_digest(DIGEST) == f"a@{DIGEST}"
    for text in ("docker.io/vllm/x:1", "registry-1.docker.io/vllm/x:1"):
        # Under the name by which nodes look for its credentials.
        assert parse_reference(text).by_digest(DIGEST) == f"docker.io/vllm/x@{DIGEST}"


def test_the_default_registry_is_one_however_it_is_called() -> None:
    names = ("x", "library/x", "docker.io/x", "index.docker.io/library/x", "registry-1.docker.io/library/x")
    for text in names:
        found = parse_reference(text)
        assert found.spellings == ("x", "library/x"), text
        assert found.is_at("registry-1.docker.io") and found.is_at("docker.io") and not found.is_at("registry.example")
    own = parse_reference("registry.example/x")
    assert own.spellings == ("x",) and own.is_at("registry.example") and not own.is_at("docker.io")
    assert parse_reference("docker.io/library/a/b").spellings == ("library/a/b",)
    assert parse_reference("vllm/x").spellings == ("vllm/x",)
