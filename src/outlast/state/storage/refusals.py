"""What the answer of an object store means: gone, denied, full, or worth another try.

The client tells a few kinds of failures by class, and the rest in prose: the status and the code in the
server's XML. Only these are taken out of it and told on, since the whole may hold what was signed, and how.
"""

import re

from outlast.errors import StorageDenied, StorageError, StorageFull, StorageUnavailable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_KIND = re.compile(r"kind: (Connect|Timeout|Request|Interrupted|Decode)\b")

_DENIED = frozenset({301, 401, 403})
_DENIED_CODES = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidToken",
        "InvalidBucketName",
        "NoSuchBucket",
        "PermanentRedirect",
    }
)
_FULL_WORDS = re.compile(r"quota|storagefull|insufficientstorage|insufficientcapacity", re.IGNORECASE)


def explain(error: Exception, what: str) -> StorageError:
    """`what` is the beginning of a sentence, such as "s3://bucket/key could not be read"."""
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    code = found[1] if (found := _CODE.search(text)) else ""
    reason = _reason(error, text, status, code)
    if status == 507 or _FULL_WORDS.search(code):
        return StorageFull(
            f"{what} ({reason}). What was saved before is unharmed. Free some space or raise the quota; the "
            "next save then works again."
        )
    if code == "NoSuchBucket":
        return StorageDenied(f"{what} ({reason}). Make the bucket first, or correct its name.")
    denied = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")
    if denied or status in _DENIED or code in _DENIED_CODES:
        return StorageDenied(
            f"{what} ({reason}). Check the credentials, the region and the endpoint in the environment, and "
            "what they allow."
        )
    if "169.254.169.254" in text:
        reason += "; there are no credentials in the environment, and this machine has none of its own"
    return StorageUnavailable(f"{what} ({reason}). Try again later, and check the network and the endpoint.")


def no_bucket(error: Exception) -> bool:
    """Whether what was not found is the bucket rather than the object."""
    return (found := _CODE.search(str(error))) is not None and found[1] == "NoSuchBucket"


def _reason(error: Exception, text: str, status: int | None, code: str) -> str:
    if status is not None:
        return f"HTTP {status} {code}".rstrip()
    if found := _KIND.search(text):
        return {
            "Connect": "no connection",
            "Timeout": "no answer in time",
            "Request": "the connection broke",
            "Interrupted": "the connection broke",
            "Decode": "the answer broke off",
        }[found[1]]
    return type(error).__name__
