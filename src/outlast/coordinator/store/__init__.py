"""Where the coordinators' state lives: one seam, and two stores behind it.

Read `seam` for what a store promises. `etcd` is for many machines: a cluster that agrees by Raft, called
over `gateway`. `embedded` needs nothing but a local disk. The embedded store is made of small parts, from
the bytes up: `frames` (what a log's bytes mean), `records` (what they carry), `disk` and `lock` (the
operating system), `log` (durable appends), `keyspace` and `leases` (the memory, without any I/O),
`embedded` (all of them behind the seam).
"""
