"""Where the `outlast` command begins: with Ctrl-C, before anything is loaded that takes time.

Until a command has said what Ctrl-C means to it, nothing has been started and nothing is half done, so the
process may end on the spot, without a traceback of whatever was being imported.
"""

import os
import signal

INTERRUPTED = 130


def leave_at_once(*_: object) -> None:
    os._exit(INTERRUPTED)


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_at_once)
    from outlast.cli import main as command

    return command()
