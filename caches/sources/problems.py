"""The sentences that a source answers with: one place, so that every store uses the same codes and next steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from controlplane.clusters.documents import Reason
from controlplane.errors import Permanent, Transient

TOUCHED = "source:source:touched"
THROTTLE_PAUSE = timedelta(seconds=10)  # stores rarely say how long; ten seconds lets a prefix recover


def shown(path: str) -> str:
    """A path as text that any log, page and database takes: what is no printable text is escaped."""
    text = path.encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


_POLICY_STEP = "Check the connection's secret, and that its policy allows listing the bucket and reading objects."


def access_denied(
    place: str, detail: str = "The store refuses these credentials.", next_step: str = _POLICY_STEP
) -> Permanent:
    return Permanent(
        "source:user:access-denied",
        f"{shown(place)}: {detail}",
        reason=Reason.ACCESS_DENIED,
        status=403,
        next_step=next_step,
    )


def gated(place: str) -> Permanent:
    """Listed or not, its files cannot be read with what the connection has."""
    return Permanent(
        "source:user:gated",
        f"{shown(place)}: the repository is gated, and its files are not shown to this connection.",
        reason=Reason.ACCESS_DENIED,
        status=403,
        next_step="Accept the repository's conditions on the hub, and store a token of that account in the secret.",
    )


def secret_missing(name: str, detail: str = "does not exist") -> Permanent:
    return Permanent(
        "source:user:secret-missing",
        f"The secret {name} {detail}.",
        reason=Reason.ACCESS_DENIED,
        next_step=f"Store it on the worker with: manage.py secret set {name}",
    )


def bad_uri(uri: str, detail: str) -> Permanent:
    return Permanent(
        "source:user:bad-uri",
        f"{shown(uri)}: {detail}",
        reason=Reason.INVALID_REQUEST,
        status=400,
        next_step=(
            "Use s3://bucket/prefix on an S3 connection, file:///root/folder on a Filesystem connection, "
            "hf://organisation/name@revision on a HuggingFace connection, jumpstart://model@version on a JumpStart one."
        ),
    )


def not_allowed(place: str, connection: str) -> Permanent:
    return Permanent(
        "source:user:not-allowed",
        f"{place} is outside what connection {connection} may read.",
        reason=Reason.INVALID_REQUEST,
        next_step="Use a place inside the connection's allowed list, or have an administrator extend that list.",
    )


def address_refused(host: str, detail: str) -> Permanent:
    return Permanent(
        "source:user:address-refused",
        f"{host} is refused: {detail}",
        reason=Reason.INVALID_REQUEST,
        next_step="Give the public or private address of the store itself.",
    )


def no_such_bucket(bucket: str) -> Permanent:
    return Permanent(
        "source:user:no-such-bucket",
        f"There is no bucket {bucket} at this store.",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Check the bucket's name, and the connection's endpoint and region.",
    )


def no_such_model(place: str) -> Permanent:
    return Permanent(
        "source:user:no-such-model",
        f"{shown(place)}: there is no such model or version in the manifest.",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Check id and version, and the connection's region and manifest. Proprietary models are not in it.",
    )


def not_offered(place: str, detail: str) -> Permanent:
    return Permanent(
        "source:user:not-offered",
        f"{shown(place)}: {detail}",
        reason=Reason.INVALID_REQUEST,
        next_step="Choose another version or model, or put its files into a bucket and register them from there.",
    )


def terms_required(subject: str, place: str = "") -> Permanent:
    where = f", which stand at {shown(place)}" if place else ""
    return Permanent(
        "source:user:terms-required",
        f"{shown(subject)} is given on terms{where}, and nobody has accepted them here.",
        reason=Reason.ACCESS_DENIED,
        status=403,
        next_step="Read the terms. Whoever may bind your organisation accepts them by registering with accept_eula.",
    )


def no_such_repository(place: str) -> Permanent:
    return Permanent(
        "source:user:no-such-repository",
        f"{shown(place)}: there is no such repository at this hub, or the connection's token may not know of it.",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Check organisation and name, the connection's endpoint, and which repositories its token may read.",
    )


def no_such_revision(place: str) -> Permanent:
    return Permanent(
        "source:user:no-such-revision",
        f"{shown(place)}: the repository has no such branch, tag or commit.",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Check what follows @ in the address; without it, main is read.",
    )


def empty_place(uri: str) -> Permanent:
    return Permanent(
        "source:user:empty-prefix",
        f"There is no file below {uri}.",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Check the spelling, upper and lower case included; the address must name a folder, not one file.",
    )


def not_found(path: str) -> Permanent:
    return Permanent(
        "source:user:not-found",
        f"{shown(path)}: the store lists it, and does not have it when asked.",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Check the address and the connection's endpoint; when files are being replaced, retry later.",
    )


def wrong_region(bucket: str, region: str) -> Permanent:
    where = f"is in region {region}" if region else "is in another region"
    return Permanent(
        "source:user:wrong-region",
        f"Bucket {bucket} {where}.",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Set the connection's region to the bucket's.",
    )


def unsafe_file(place: str, detail: str) -> Permanent:
    return Permanent(
        "source:user:unsafe-file",
        f"{shown(place)}: {detail}",
        reason=Reason.INVALID_REQUEST,
        next_step="Rename, remove or ignore this file at the source, then register again.",
    )


def changed(path: str, detail: str = "It is no longer what was registered.") -> Permanent:
    return Permanent(
        "source:source:changed",
        f"{shown(path)}: {detail}",
        reason=Reason.SOURCE_CHANGED,
        status=409,
        next_step="Register the present content as a new version, or restore the old content at the source.",
    )


def touched(path: str) -> Transient:
    """Perhaps only its attributes changed, perhaps its bytes did: whoever has read a part of it begins anew."""
    return Transient(
        TOUCHED,
        f"{shown(path)}: It was written to or had its attributes changed while it was read; it is read anew.",
        reason=Reason.SOURCE_UNAVAILABLE,
    )


def rejected(place: str, detail: str) -> Permanent:
    return Permanent(
        "source:source:rejected",
        f"{place}: {detail}",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Check the connection's endpoint, addressing style and region.",
    )


def untrusted(place: str) -> Permanent:
    return Permanent(
        "source:user:untrusted-certificate",
        f"{place}: the store's certificate is not signed by an authority that is trusted here.",
        reason=Reason.SOURCE_UNAVAILABLE,
        next_step="Put the authority's certificate (PEM) into the connection's ca_bundle.",
    )


def unavailable(place: str, detail: str) -> Transient:
    return Transient("source:source:unavailable", f"{place}: {detail}", reason=Reason.SOURCE_UNAVAILABLE)


def throttled(place: str, seconds: float | None = None, who: str = "store") -> Transient:
    """``seconds`` is what the store (``who``) asked for, None when it only said that it is too much."""
    pause = THROTTLE_PAUSE if seconds is None else timedelta(seconds=seconds)
    return Transient(
        "source:source:throttled",
        f"{place}: the {who} asks to slow down.",
        reason=Reason.SOURCE_UNAVAILABLE,
        retry_at=datetime.now(UTC) + pause,
    )
