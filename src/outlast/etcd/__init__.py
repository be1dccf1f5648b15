"""A small etcd cluster for people who do not know etcd: `outlast etcd start`, `check` and `prune`.

Outlast keeps what its jobs agree on in etcd, which is somebody else's program. Here is what it takes to run
three of them well: `places` (where members are), `program` (the binary), `command` (how it is started),
`folder` (what a member keeps on disk), `joining` (how a cluster gets and replaces members), `process` and
`verdicts` (one life of a member, and why it ended), `telling` (what people hear meanwhile), `starting` (all
of it together). `cluster` is how one asks a cluster about itself; `checking` and `metrics` judge the answers;
`pruning` removes what ended jobs leave behind.
"""
