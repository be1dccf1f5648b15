"""The training state as bytes: what a joiner receives from its peers, and what is written to disk.

Read the modules in this order: `nodes` and `tree` (any nesting of plain values and tensors, in
MessagePack), `contents` (the tensors laid out in one space of bytes) and `image` (that space, cut into pieces
that travel by themselves), `structure` (what two
programs must have in common for one to load the other's state), `optimizer` and `training` (a model, its
optimizers and the rest, captured and loaded), `digest` (one hash for all of it), `fingerprint` (whether two
machines compute the same bits).

Nothing here opens a socket or a file, and nothing is ever pickled: whoever can feed bytes to this package can
make it raise a `ProtocolError`, and can not make it run code.
"""
