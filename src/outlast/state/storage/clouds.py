"""Clients of the object stores: where their settings come from, and what they must not do.

Everything that a client needs to know beside the bucket (endpoint, region, credentials) comes from the
environment, under the names that its cloud has given them, and is read by `obstore` itself. Retries are
switched off, since retrying is `patience.py`'s: two who do it multiply. Passwords do not travel in clear:
plain HTTP is for this machine only, unless AWS_ALLOW_HTTP says otherwise.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outlast.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az")

_CONNECT_WITHIN_S = 5
# No byte for this long, and the connection is taken for dead.
_STALL_WITHIN_S = 20
_REQUEST_WITHIN_S = 120


def client(scheme: str, bucket: str) -> ObjectStore:
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError:
        raise ConfigError(
            f"For {scheme}:// the package obstore is needed: pip install 'outlast[cloud]'"
        ) from None
    options: dict[str, Any] = {
        "client_options": {
            "connect_timeout": timedelta(seconds=_CONNECT_WITHIN_S),
            "read_timeout": timedelta(seconds=_STALL_WITHIN_S),
            "timeout": timedelta(seconds=_REQUEST_WITHIN_S),
            "allow_http": scheme == "s3" and _plain_http(),
        },
        "retry_config": {"max_retries": 0},
    }
    try:
        if scheme == "gs":
            return GCSStore(bucket, **options)
        if scheme == "az":
            return AzureStore(bucket, **options)
        # The server compares what it got with this, part by part; signing needs the same hash anyway.
        checksum = os.environ.get("AWS_CHECKSUM_ALGORITHM", "sha256")
        return S3Store(bucket, checksum_algorithm=checksum, **options)
    except Exception as error:
        # Whatever it is, it is about the settings: nobody has been asked anything yet. Their values may be
        # secrets, so only the kind of error is told.
        raise ConfigError(
            f"The client for {scheme}://{bucket} cannot be made ({type(error).__name__}): check the "
            "settings of that cloud in the environment (AWS_…, GOOGLE_…, AZURE_…)."
        ) from None


def _plain_http() -> bool:
    """Whether the endpoint for S3 is an http:// one; a ConfigError if it is and must not be."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    name, endpoint = next(((n, os.environ[n]) for n in names if os.environ.get(n)), ("", ""))
    parts = urlsplit(endpoint)
    if parts.scheme != "http":
        return False
    if not _is_loopback(parts.hostname or "") and os.environ.get("AWS_ALLOW_HTTP", "").lower() not in (
        "1",
        "true",
    ):
        raise ConfigError(
            f"{name} is a plain http:// URL of another machine ({parts.hostname}), so that everybody "
            "between here and there could read along. Use https://, or set AWS_ALLOW_HTTP=true if that is "
            "all right."
        )
    return True


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
