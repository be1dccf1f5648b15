"""Where the coordinator's state lives: one seam, and the store behind it that needs nothing but a local disk.

Read `seam` for what a store promises. The embedded store is made of small parts, from the bytes up: `frames`
(what a log's bytes mean), `records` (what they carry), `disk` and `lock` (the operating system), `log`
(durable appends), `keyspace` and `leases` (the memory, without any I/O), `embedded` (all of them behind the
seam).
"""
