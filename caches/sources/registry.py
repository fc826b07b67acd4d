"""Container registries by the OCI distribution API: what a reference names now, and how large it is.

Only what Hearth asks is here (manifests by tag and digest, the ends of layers): pulling is the node's own business. A
tag is asked for once when an image is registered and again to see whether it moved; everything else goes by digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from caches.domain.images import DEFAULT_NAMES, DEFAULT_REGISTRY, ImageReference, NotAReference, parse_reference
from caches.sources import allowed, problems
from caches.sources.http_client import Answer, HttpClient, refusal
from caches.sources.image_documents import (
    ACCEPT,
    INDEXES,
    MANIFESTS,
    Blob,
    ImageManifest,
    manifest_of,
    media_type_of,
    platform_of,
    platforms_of,
)
from caches.sources.image_sizes import TAIL_BYTES, unpacked_bytes
from caches.sources.registry_auth import Authenticator, denied
from controlplane.clusters.documents import ConnectionSpec, Reason, SourceType
from controlplane.errors import HearthError, Permanent

MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
PARALLEL = 8
_CHECK_STEP = "Check the spelling of repository and tag, and that the image was pushed to this registry."


@dataclass(frozen=True, slots=True)
class ResolvedImage:
    """What a reference names. ``digest`` is that of the index where there is one, else of the manifest; the sizes are
    those of the platform that moves the most bytes. ``unpacked_bytes`` is an estimate (image_sizes)."""

    reference: str
    digest: str
    media_type: str
    platform_digests: Mapping[str, str]  # "linux/amd64" -> digest of its manifest
    compressed_bytes: int
    unpacked_bytes: int

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(self.platform_digests)


class RegistryClient:
    """Raises only ``controlplane.errors`` with a Reason, as sources do. Safe to share between threads.

    ``spec`` None asks the registry that a reference names, without credentials. Otherwise its endpoint is the registry:
    references that name another one are refused, and no credentials leave for it.
    """

    def __init__(self, spec: ConnectionSpec | None, secret: Mapping[str, str], *, allow_private: bool = True) -> None:
        self.spec = spec or ConnectionSpec("", SourceType.REGISTRY, allowed=("*",))
        self._private = allow_private
        self._base = self.spec.endpoint.rstrip("/")
        allowed.check_endpoint(self._base, allow_private=allow_private)
        self._client = HttpClient(self.spec, allow_private=allow_private, who="registry")
        self._auth = Authenticator(self._client, secret, self.spec.secret_name, allow_private=allow_private)

    def probe(self) -> None:
        """Ask whether the registry answers and takes the credentials."""
        self._get("", self._base or f"https://{DEFAULT_REGISTRY}", "/v2/", self.spec.name)

    def resolve(self, reference: str) -> ResolvedImage:
        """Permanent(SourceUnavailable) for no such image, (AccessDenied), (InvalidRequest) for schema 1 and what is no
        image, (IntegrityMismatch) where the bytes do not have their digest; Transient for 429 and outages."""
        image = self._parsed(reference)
        digest, kind, document = self._document(image, image.digest or image.tag, str(image))
        with _reading(str(image)):
            if kind in INDEXES:
                found = self._of_index(image, document)
            else:
                manifest = manifest_of(document)
                found = [(self._platform(image, manifest), digest, manifest)]
        if not found:
            raise _refused(str(image), "it holds no image for any platform.")
        largest = max((manifest for _, _, manifest in found), key=lambda manifest: manifest.compressed_bytes)
        return ResolvedImage(
            reference=str(image),
            digest=digest,
            media_type=kind,
            platform_digests={platform or "unknown": name for platform, name, _ in found},
            compressed_bytes=largest.compressed_bytes,
            unpacked_bytes=self._unpacked(image, largest),
        )

    def current_digest(self, reference: str) -> str:
        """The digest that a tag names now, by one HEAD where the registry states it there."""
        image = self._parsed(reference)
        base, repository = self._place(image)
        path = f"/v2/{repository}/manifests/{image.digest or image.tag}"
        headers = self._get(repository, base, path, str(image), method="HEAD")[1].headers
        stated = headers.get("Docker-Content-Digest", "")
        return stated if _is_digest(stated) else self._document(image, image.digest or image.tag, str(image))[0]

    def close(self) -> None:
        self._client.close()

    def _of_index(self, image: ImageReference, index: Mapping[str, Any]) -> list[tuple[str, str, ImageManifest]]:
        def one(entry: Blob) -> tuple[str, str, ImageManifest]:
            _, kind, document = self._document(image, entry.digest, str(image))
            if kind not in MANIFESTS:
                raise ValueError("an index inside an index")
            with _reading(str(image)):
                return entry.platform, entry.digest, manifest_of(document)

        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="registry") as pool:
            return list(pool.map(one, platforms_of(index)))

    def _document(self, image: ImageReference, name: str, shown: str) -> tuple[str, str, Mapping[str, Any]]:
        """Digest, media type and content of a manifest or index, the digest computed from the very bytes."""
        base, repository = self._place(image)
        body, answer = self._get(repository, base, f"/v2/{repository}/manifests/{name}", shown)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        for stated in (name, answer.headers.get("Docker-Content-Digest", "")):
            if _is_digest(stated) and stated != digest:
                raise Permanent(
                    "source:source:other-digest",
                    f"{shown}: the registry sent other bytes than those of the digest it states.",
                    reason=Reason.INTEGRITY_MISMATCH,
                    next_step="Ask again; if it stays so, do not use this registry before its operator explained it.",
                )
        with _reading(shown):
            document = json.loads(body)
            kind = media_type_of(document, answer.headers.get("Content-Type", ""))
        if kind == "schema1":
            raise _refused(shown, "it is of schema 1, which states no digests of its layers.")
        if kind not in INDEXES | MANIFESTS:
            raise _refused(shown, "it is no image.")
        return digest, kind, document

    def _platform(self, image: ImageReference, manifest: ImageManifest) -> str:
        base, repository = self._place(image)
        body, _ = self._get(repository, base, f"/v2/{repository}/blobs/{manifest.config.digest}", str(image))
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != manifest.config.digest:
            raise _refused(str(image), "its configuration does not have the digest that its manifest states.")
        return platform_of(json.loads(body))

    def _unpacked(self, image: ImageReference, manifest: ImageManifest) -> int:
        layers = {layer.digest: layer for layer in manifest.layers}
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="registry") as pool:
            return sum(pool.map(lambda layer: unpacked_bytes(layer, self._end(image, layer)), layers.values()))

    def _end(self, image: ImageReference, layer: Blob) -> bytes:
        """The last bytes of a packed layer, b"" where they cannot be had: an estimate does without."""
        if "gzip" not in layer.media_type or layer.size_bytes < TAIL_BYTES:
            return b""
        base, repository = self._place(image)
        span = {"Range": f"bytes={layer.size_bytes - TAIL_BYTES}-{layer.size_bytes - 1}"}
        try:
            path = f"/v2/{repository}/blobs/{layer.digest}"
            return self._get(repository, base, path, str(image), headers=span, partial=True)[0]
        except HearthError:
            return b""

    def _get(
        self, repository: str, base: str, path: str, shown: str, *, method: str = "GET",
        headers: Mapping[str, str] | None = None, partial: bool = False,
    ) -> tuple[bytes, Answer]:  # fmt: skip
        """The body of a 200 (of a 206 where only a part is wanted), asked for again once a challenge is answered."""
        sent = {"Accept": ACCEPT} | dict(headers or {})
        authorization = self._auth.header(repository)
        for last in (False, True):
            with self._client.open(
                shown, base + path, method=method, headers=sent, authorization=authorization
            ) as answer:
                if answer.status == 401 and not last:
                    refused = answer
                elif answer.status == (206 if partial else 200):
                    return answer.read(shown, MAX_DOCUMENT_BYTES) if method == "GET" else b"", answer
                else:
                    raise _status(shown, answer)
            authorization = self._auth.answer(shown, repository, refused)
        raise AssertionError("the loop returns or raises")

    def _parsed(self, reference: str) -> ImageReference:
        try:
            return parse_reference(reference)
        except NotAReference as error:
            raise _refused(reference[:200], str(error)) from error

    def _place(self, image: ImageReference) -> tuple[str, str]:
        """Where to ask, and by which name the repository goes there."""
        base, own = self._base, urlsplit(self._base).netloc.lower()
        if base and not image.registry:
            image = replace(image, registry=own)
        if base and not image.is_at(own):
            raise problems.not_allowed(f"Registry {image.registry}", self.spec.name)
        host = DEFAULT_REGISTRY if image.registry in DEFAULT_NAMES else image.registry
        if not base or host == DEFAULT_REGISTRY:
            base = f"{'http' if _is_loopback(host) else 'https'}://{host}"
            allowed.check_endpoint(base, allow_private=self._private)
        if not any(may_pull(name, self.spec.allowed) for name in image.spellings):
            raise problems.not_allowed(f"Repository {image.repository}", self.spec.name)
        return base, image.spellings[-1]


def check_repository(text: str) -> None:
    """Refuse what cannot stand in the allowed list of a Registry connection."""
    if text == "*":
        return
    try:
        found = parse_reference(text)
        if found.registry or str(found) != f"{text}:latest":
            raise NotAReference("Name repositories or folders of them, without registry and tag, or * for all.")
    except NotAReference as error:
        raise problems.bad_uri(text, str(error)) from error


def may_pull(repository: str, names: tuple[str, ...]) -> bool:
    """``names`` are repositories, folders of them, or * for all."""
    parts = repository.split("/")
    return "*" in names or any("/".join(parts[:count]) in names for count in range(1, len(parts) + 1))


class _reading:
    """Around taking a document apart: what cannot be read is refused, with what is wrong with it."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | RecursionError):
            detail = "its manifest cannot be read" if isinstance(error, json.JSONDecodeError) else str(error)
            raise _refused(self._shown, f"{detail}.") from error


def _status(shown: str, answer: Answer) -> HearthError:
    if answer.status in (401, 403):
        return denied(shown)
    if answer.status == 404:
        return Permanent(
            "source:user:no-such-image",
            f"{problems.shown(shown)}: the registry has no such image, or does not tell these credentials of it.",
            reason=Reason.SOURCE_UNAVAILABLE,
            status=404,
            next_step=_CHECK_STEP,
        )
    return refusal(shown, answer)


def _refused(shown: str, detail: str) -> Permanent:
    return Permanent(
        "source:user:not-an-image",
        f"{problems.shown(shown)}: {detail}",
        reason=Reason.INVALID_REQUEST,
        next_step="Name a container image that was pushed by a current client.",
    )


def _is_digest(text: str) -> bool:
    return text.startswith("sha256:") and len(text) == 71


def _is_loopback(host: str) -> bool:
    """Registries on this machine are asked without encryption, as container runtimes do."""
    name = host.rpartition(":")[0] or host
    try:
        return name == "localhost" or ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
