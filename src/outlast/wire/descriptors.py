"""How many files a process may have open: every connection is one.

Most systems start a process with a soft limit of 1,024, for the sake of old programs, and let it raise that
itself up to a hard one. A coordinator of a few hundred machines has to.
"""

import resource

_SPARE = 128
"""For everything that is no connection: the store, logs, what the interpreter opens."""


def allow(connections: int) -> int:
    """Make room for so many connections, as far as the system lets us; how many there can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else min(connections, soft - _SPARE)
