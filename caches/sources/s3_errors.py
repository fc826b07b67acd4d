"""What an S3 client raises, as Permanent or Transient with a reason of the closed set.

Texts of the clients are read but never passed on: they may hold addresses, headers and ids that belong to nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from botocore import exceptions as boto
from obstore import exceptions as ob

from caches.sources import problems
from controlplane.clusters.documents import Reason
from controlplane.errors import HearthError, Permanent

_THROTTLED = frozenset({"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"})
_DENIED = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "Forbidden",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "UnauthorizedAccess",
    }
)
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_CODE = re.compile(r"<Code>(\w+)</Code>", re.ASCII)
_STATUS = re.compile(r"status code: (\d{3})", re.ASCII)
# Words of the clients' own making: the texts also hold the object's key, which may say anything.
_CERTIFICATE = "InvalidCertificate("
_STALLED = "kind: Timeout"


@contextmanager
def control_errors(bucket: str, place: str) -> Iterator[None]:
    """Around boto3 calls on ``bucket``; ``place`` is what the sentence begins with."""
    try:
        yield
    except boto.ClientError as error:
        raise from_client_error(error, bucket, place) from error
    except boto.SSLError as error:
        raise problems.untrusted(place) from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise problems.access_denied(place, "The secret has no complete credentials.") from error
    except (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError) as error:
        raise problems.unavailable(place, "the store does not answer.") from error
    except boto.BotoCoreError as error:
        raise problems.rejected(place, f"the request could not be made ({type(error).__name__}).") from error
    except KeyError as error:
        raise problems.rejected(place, f"the store's answer has no {error.args[0]}.") from error
    except ValueError as error:  # botocore reads numbers and times of an answer without a net
        raise problems.rejected(place, "the store's answer cannot be read.") from error


@contextmanager
def listing_errors(bucket: str, place: str) -> Iterator[None]:
    """Around listings: a prefix without objects is an empty page, so 404 says that the bucket is not there."""
    try:
        with control_errors(bucket, place):
            yield
    except Permanent as error:
        if error.reason == Reason.SOURCE_CHANGED:
            raise problems.no_such_bucket(bucket) from error
        raise


def from_client_error(error: boto.ClientError, bucket: str, place: str) -> HearthError:
    """HEAD answers have no body, so boto3's code is then the bare status."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    answer = error.response.get("ResponseMetadata", {})
    status = int(answer.get("HTTPStatusCode", 0))
    region = str(answer.get("HTTPHeaders", {}).get("x-amz-bucket-region", ""))
    return classify(code, status, bucket, place, region)


def classify(code: str, status: int, bucket: str, place: str, region: str = "") -> HearthError:
    """The one table from S3 error codes and HTTP statuses to ours."""
    if code in _THROTTLED or status == 429:
        return problems.throttled(place)
    if code == "NoSuchBucket":
        return problems.no_such_bucket(bucket)
    if code in _REGION or status in (301, 307):
        return problems.wrong_region(bucket, region)
    if 300 <= status < 400:
        return problems.rejected(place, "the store answers with a redirect, which is not followed.")
    if code in _DENIED or status in (401, 403):
        return problems.access_denied(place)
    if status == 404 or code in ("NoSuchKey", "NoSuchVersion"):
        return problems.changed(place, "It is no longer there.")
    if status in (412, 416) or code in ("PreconditionFailed", "InvalidRange"):
        return problems.changed(place)
    if status >= 500 or code in ("InternalError", "ServiceUnavailable", "RequestTimeout"):
        return problems.unavailable(place, f"the store answers {status or code}.")
    said = " ".join(dict.fromkeys(word for word in (str(status or ""), code) if word))  # a HEAD's code is its status
    return problems.rejected(place, f"the store answers {said or 'something else'}.")


@contextmanager
def stream_errors(bucket: str, place: str) -> Iterator[None]:
    """Around obstore calls and around each step of its streams."""
    try:
        yield
    except ob.PreconditionError as error:
        raise problems.changed(place) from error
    except (ob.PermissionDeniedError, ob.UnauthenticatedError) as error:
        raise problems.access_denied(place) from error
    except FileNotFoundError as error:
        raise classify(_code(str(error)), 404, bucket, place) from error
    except (ob.BaseError, ValueError, OSError) as error:
        raise _from_text(str(error), bucket, place) from error


def _from_text(text: str, bucket: str, place: str) -> HearthError:
    if _CERTIFICATE in text:
        return problems.untrusted(place)
    code, status = _code(text), _status(text)
    if code in _THROTTLED:
        return problems.throttled(place)
    if status:
        return classify(code, status, bucket, place)
    if _STALLED in text:
        return problems.unavailable(place, "no byte arrived in time.")
    return problems.unavailable(place, "the connection broke.")


def _code(text: str) -> str:
    found = _CODE.search(text)
    return found[1] if found else ""


def _status(text: str) -> int:
    found = _STATUS.search(text)
    return int(found[1]) if found else 0
