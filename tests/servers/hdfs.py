"""A real HDFS: one NameNode and one DataNode of Hadoop 2.7.

`scripts/hadoop-jars` gets the jars. Their web pages are switched off, since these need libraries of their
own; what clients of HDFS speak, the RPC and the data transfer protocols, is all there.
"""

import os
import shutil
from pathlib import Path

from servers.children import Child, ServerFailed, answers, free_ports

JARS = Path(os.environ.get("OUTLAST_HADOOP_JARS", Path(__file__).parents[2] / ".venv" / "hadoop-jars"))

_OPENED = ["java.lang", "java.nio", "sun.nio.ch", "java.net", "java.util", "java.io", "jdk.internal.ref"]
_JAVA_OPTIONS = [
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    # Started fast rather than fast in the long run.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx256m",
]
_LOGGING = """\
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n
"""
_SERVER = "org.apache.hadoop.hdfs.server"


def missing() -> str | None:
    """Why there is no such server on this machine; None if there is."""
    if shutil.which("java") is None:
        return "no java: apt-get install default-jre-headless"
    if not (JARS / "complete").exists():
        return "no Hadoop: run scripts/hadoop-jars"
    return None


class Hdfs:
    """`wait` returns when both serve; then the NameNode may be killed and started again at will."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, name_http, data, data_http, data_ipc = free_ports(5)
        conf = folder / "conf"
        conf.mkdir()
        for name in ("hdfs", "datanode", "secondary", "journal", "static"):
            page = conf / "webapps" / name / "WEB-INF" / "web.xml"
            page.parent.mkdir(parents=True)
            page.write_text("<web-app/>")
        (conf / "log4j.properties").write_text(_LOGGING)
        _write_site(conf / "core-site.xml", {"fs.defaultFS": self.url, "hadoop.tmp.dir": str(folder / "tmp")})
        _write_site(
            conf / "hdfs-site.xml",
            {
                "dfs.replication": "1",
                "dfs.permissions.enabled": "false",
                "dfs.webhdfs.enabled": "false",
                "dfs.namenode.name.dir": f"file://{folder}/name",
                "dfs.datanode.data.dir": f"file://{folder}/data",
                "dfs.namenode.rpc-address": f"127.0.0.1:{self.port}",
                "dfs.namenode.http-address": f"127.0.0.1:{name_http}",
                "dfs.datanode.address": f"127.0.0.1:{data}",
                "dfs.datanode.http.address": f"127.0.0.1:{data_http}",
                "dfs.datanode.ipc.address": f"127.0.0.1:{data_ipc}",
                "dfs.datanode.hostname": "127.0.0.1",
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                "dfs.namenode.safemode.extension": "0",
                # A restarted NameNode is to have its blocks again at once.
                "dfs.heartbeat.interval": "1",
                "dfs.blockreport.initialDelay": "0",
                # So that a listing has several pages.
                "dfs.ls.limit": "10",
            },
        )
        self._conf = conf
        (folder / "data").mkdir(mode=0o700)
        formatting = self._java("namenode.NameNode", "-format", "-nonInteractive")
        if formatting.end() != 0:
            raise ServerFailed(formatting.log.read_text(errors="replace")[-4000:])
        self._name_node: Child | None = self._java("namenode.NameNode")
        self._data_node = self._java("datanode.DataNode")

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    @property
    def name_node_pid(self) -> int | None:
        return None if self._name_node is None else self._name_node.pid

    def wait(self) -> None:
        """Until a file can be written, which needs both of them to know each other."""
        assert self._name_node is not None
        self._name_node.wait_until(lambda: answers(self.port))
        self._data_node.wait_until(self._writable)

    def kill_name_node(self) -> None:
        assert self._name_node is not None
        self._name_node.kill()
        self._name_node = None

    def start_name_node(self) -> None:
        assert self._name_node is None
        self._name_node = self._java("namenode.NameNode")

    def stop(self) -> None:
        self._data_node.kill()
        if self._name_node is not None:
            self._name_node.kill()

    def _java(self, main: str, *arguments: str) -> Child:
        classes = f"{self._conf}:{JARS}/*"
        command = ["java", *_JAVA_OPTIONS, "-cp", classes, f"{_SERVER}.{main}", *arguments]
        return Child(command, self._folder / f"{main.rpartition('.')[2]}.log", cwd=self._folder)

    def _writable(self) -> bool:
        from hdfs_native import Client, WriteOptions

        try:
            with Client(self.url).create("/ready", WriteOptions(overwrite=True)) as file:
                file.write(b"1")
        except Exception:
            # The client raises what it likes; the deadline of the wait is what counts.
            return False
        return True


def _write_site(path: Path, settings: dict[str, str]) -> None:
    properties = "".join(
        f"<property><name>{n}</name><value>{v}</value></property>" for n, v in settings.items()
    )
    path.write_text(f"<configuration>{properties}</configuration>")
