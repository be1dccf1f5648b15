"""How processes of one job talk: small typed messages on authenticated TCP connections.

Read the modules in this order: `framing` (where one message ends), `codec` (what a payload may be),
`token` and `handshake` (who may speak at all), `address` (where to listen, and where not to), `streams` and
`listener` (asyncio, for coordinators and agents), `blocking` (a plain thread inside a training process).

What an attacker with another account on the machine can do: connect to a port, send anything, hold
connections open, and take a port that nobody listens on. What that buys: a refused connection and a number in
a counter. Without the token nobody is believed, nobody makes a process hold more than a few kilobytes, and
nobody keeps honest peers from connecting. What is *not* promised here is secrecy from root or across a
network: messages travel in the clear, which is why a listener refuses to leave the loopback interface.
"""
