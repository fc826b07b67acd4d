"""Every answer of a store has one meaning, whichever client heard it."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto
from obstore import exceptions as ob

from caches.sources.s3_errors import classify, control_errors, from_client_error, stream_errors
from controlplane.clusters.documents import Reason
from controlplane.errors import HearthError, Permanent, Transient

TABLE: list[tuple[str, int, str, Reason]] = [
    ("SlowDown", 503, "source:source:throttled", Reason.SOURCE_UNAVAILABLE),
    ("SlowDown", 0, "source:source:throttled", Reason.SOURCE_UNAVAILABLE),
    ("", 429, "source:source:throttled", Reason.SOURCE_UNAVAILABLE),
    ("NoSuchBucket", 404, "source:user:no-such-bucket", Reason.SOURCE_UNAVAILABLE),
    ("NoSuchKey", 404, "source:source:changed", Reason.SOURCE_CHANGED),
    ("NoSuchVersion", 404, "source:source:changed", Reason.SOURCE_CHANGED),
    ("404", 404, "source:source:changed", Reason.SOURCE_CHANGED),
    ("PreconditionFailed", 412, "source:source:changed", Reason.SOURCE_CHANGED),
    ("InvalidRange", 416, "source:source:changed", Reason.SOURCE_CHANGED),
    ("AccessDenied", 403, "source:user:access-denied", Reason.ACCESS_DENIED),
    ("403", 403, "source:user:access-denied", Reason.ACCESS_DENIED),
    ("ExpiredToken", 400, "source:user:access-denied", Reason.ACCESS_DENIED),
    ("InvalidAccessKeyId", 403, "source:user:access-denied", Reason.ACCESS_DENIED),
    ("", 401, "source:user:access-denied", Reason.ACCESS_DENIED),
    ("PermanentRedirect", 301, "source:user:wrong-region", Reason.SOURCE_UNAVAILABLE),
    ("AuthorizationHeaderMalformed", 400, "source:user:wrong-region", Reason.SOURCE_UNAVAILABLE),
    ("", 302, "source:source:rejected", Reason.SOURCE_UNAVAILABLE),
    ("InternalError", 500, "source:source:unavailable", Reason.SOURCE_UNAVAILABLE),
    ("", 502, "source:source:unavailable", Reason.SOURCE_UNAVAILABLE),
    ("InvalidArgument", 400, "source:source:rejected", Reason.SOURCE_UNAVAILABLE),
]
TRANSIENT = {"source:source:throttled", "source:source:unavailable"}


@pytest.mark.parametrize(("code", "status", "ours", "reason"), TABLE)
def test_each_answer_has_a_code_a_reason_and_a_next_step(code: str, status: int, ours: str, reason: Reason) -> None:
    error = classify(code, status, "models", "s3://models/m")
    assert isinstance(error, Transient if ours in TRANSIENT else Permanent)
    assert isinstance(error, Permanent | Transient)
    assert (error.code, error.reason) == (ours, reason)
    assert error.next_step and error.detail.endswith(".")


def test_boto3_says_the_region_where_the_bucket_is() -> None:
    answer = {
        "Error": {"Code": "301"},
        "ResponseMetadata": {"HTTPStatusCode": 301, "HTTPHeaders": {"x-amz-bucket-region": "eu-north-1"}},
    }
    error = from_client_error(boto.ClientError(answer, "HeadObject"), "models", "f")  # type: ignore[arg-type]
    assert "eu-north-1" in error.detail


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (boto.ConnectTimeoutError(endpoint_url="http://x"), "source:source:unavailable"),
        (boto.ReadTimeoutError(endpoint_url="http://x"), "source:source:unavailable"),
        (boto.EndpointConnectionError(endpoint_url="http://x"), "source:source:unavailable"),
        (boto.ConnectionClosedError(endpoint_url="http://x"), "source:source:unavailable"),
        (boto.SSLError(endpoint_url="https://x", error=OSError("bad")), "source:user:untrusted-certificate"),
        (boto.NoCredentialsError(), "source:user:access-denied"),
        (boto.ParamValidationError(report="hunter2"), "source:source:rejected"),
    ],
)
def test_what_boto3_raises_by_itself(raised: Exception, code: str) -> None:
    with pytest.raises(HearthError) as caught, control_errors("models", "f"):
        raise raised
    assert caught.value.code == code and "hunter2" not in caught.value.detail


def obstore_text(status: str, code: str = "", key: str = "m/f") -> str:
    body = f"<Error><Code>{code}</Code></Error>" if code else ""
    return f"Generic S3 error: Error performing GET http://s3/{key} in 1ms - non-2xx status code: {status}: {body}"


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ob.PreconditionError("x"), "source:source:changed"),
        (ob.PermissionDeniedError("x"), "source:user:access-denied"),
        (ob.UnauthenticatedError("x"), "source:user:access-denied"),
        (FileNotFoundError(obstore_text("404 Not Found", "NoSuchKey")), "source:source:changed"),
        (FileNotFoundError(obstore_text("404 Not Found", "NoSuchBucket")), "source:user:no-such-bucket"),
        (ob.GenericError(obstore_text("503 Service Unavailable", "SlowDown")), "source:source:throttled"),
        (ob.GenericError(obstore_text("503 Service Unavailable")), "source:source:unavailable"),
        (ob.GenericError(obstore_text("416 Range Not Satisfiable")), "source:source:changed"),
        (ob.GenericError("source: HttpError { kind: Timeout }"), "source:source:unavailable"),
        (ob.GenericError("error: InvalidCertificate(UnknownIssuer)"), "source:user:untrusted-certificate"),
        (ob.GenericError("connection reset"), "source:source:unavailable"),
        (ValueError("bad path"), "source:source:unavailable"),
    ],
)
def test_what_obstore_raises(raised: Exception, code: str) -> None:
    with pytest.raises(HearthError) as caught, stream_errors("models", "f"):
        raise raised
    assert caught.value.code == code


@pytest.mark.parametrize("key", ["certificate-503/timeout", "status-404/f", "403 Forbidden"])
def test_the_name_of_an_object_never_decides(key: str) -> None:
    with pytest.raises(Transient) as caught, stream_errors("models", "f"):
        raise ob.GenericError(obstore_text("500 Internal Server Error", key=key))
    assert caught.value.code == "source:source:unavailable"


def test_a_bug_stays_a_bug() -> None:
    for around in (control_errors, stream_errors):
        with pytest.raises(ZeroDivisionError), around("models", "f"):
            raise ZeroDivisionError
