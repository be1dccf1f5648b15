import os
import stat
from pathlib import Path

import pytest

from outlast.errors import ConfigError
from outlast.wire.token import create_token, load_token


def test_a_created_token_is_private_and_can_be_loaded(tmp_path: Path) -> None:
    token = create_token(tmp_path / "token")
    assert len(token) == 32
    assert load_token(tmp_path / "token") == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_the_umask_does_not_matter(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        create_token(tmp_path / "token")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_an_existing_token_is_never_replaced(tmp_path: Path) -> None:
    token = create_token(tmp_path / "token")
    with pytest.raises(ConfigError, match="exists"):
        create_token(tmp_path / "token")
    assert load_token(tmp_path / "token") == token
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_token_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    create_token(tmp_path / "token")
    (tmp_path / "token").chmod(mode)
    with pytest.raises(ConfigError, match=rf"accessible to others \(mode {mode:04o}\).*chmod 600"):
        load_token(tmp_path / "token")


@pytest.mark.parametrize("content", ["", "ab" * 31, "AB" * 32, "ab" * 32 + "\n\n", "xy" * 32, "ab" * 9999])
def test_a_malformed_token_is_refused_without_being_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(ConfigError, match="malformed") as caught:
        load_token(path)
    assert not content or content[:32] not in str(caught.value)


def test_what_is_not_a_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        load_token(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_token(tmp_path)


def test_missing_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no job token .*nowhere"):
        load_token(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="can not be written"):
        create_token(tmp_path / "no" / "token")
