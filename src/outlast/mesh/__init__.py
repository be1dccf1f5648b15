"""The mesh: authenticated connections between the replicas of a job, each with each.

Read the modules in this order: `frames` (what travels), `incoming` and `connection` (one peer, once it is
known), `greeting` (how two processes find out which lives they are), `door` (dialling, strangers, and lives
that come early), `poller` (one thread that waits for all of them), `transport` (what the rest of Outlast
sees of it).
"""
