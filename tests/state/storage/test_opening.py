import sys
from pathlib import Path

import pytest

from outlast.errors import ConfigError
from outlast.state.storage.opening import open_bare, open_storage


def test_paths_and_file_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a b"
    open_storage(folder).put("key", b"1")
    for url in (
        str(folder),
        "a b",
        f"file://{folder}",
        f"file://localhost{folder}/",
        f"file://{tmp_path}/a%20b",
    ):
        storage = open_storage(url)
        assert storage.url == str(folder)
        assert storage.get("key", 1) == b"1"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/some/prefix/", "s3://bucket/some/prefix"),
        ("gs://bucket/some", "gs://bucket/some"),
        ("hdfs://127.0.0.1:8020/some/path", "hdfs://127.0.0.1:8020/some/path"),
        ("hdfs://service", "hdfs://service/"),
    ],
)
def test_urls_as_a_person_would_write_them(url: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    assert open_storage(url).url == shown


def test_azure_needs_to_know_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match="AZURE"):
        open_bare("az://container/some")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_bare("az://container/some").url == "az://container/some"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/path",
        "memory://",
        "s3://",
        "s3:///prefix",
        "s3:/bucket/prefix",
        "s3:bucket",
        "hdfs:/host/path",
        "file:/path",
        "s3://bucket/../other",
        "s3://bucket/a//b",
        "s3://bucket/a?b=c",
        "gs://",
        "az://",
        "hdfs://",
        "hdfs:///path",
        "file://host/path",
        "file://",
    ],
)
def test_a_wrong_url_is_told_which_there_are(url: str) -> None:
    with pytest.raises(ConfigError, match=r"file://.*s3://.*gs://.*az://.*hdfs://"):
        open_storage(url)


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="environment") as caught:
        open_storage("s3://me:open-sesame@bucket/prefix")
    assert "open-sesame" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket", "az://bucket"])
def test_the_client_is_named_when_it_is_missing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'outlast\[cloud\]'"):
        open_bare(url)
