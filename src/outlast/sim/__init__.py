"""The protocol under a seed: the real cores, a simulated world, and checkers that never look away.

One seed decides everything: how long each message takes and whether it arrives, who crashes, sleeps, hangs
or is cut off and when. So one number replays any run, and a violation prints it together with a transcript.

`world` is time and randomness; `network`, `mesh` and `store` are what lies between the nodes. `nodes` and
`replica` are processes: each replica has the very driver that training has (`protocol/driver.py`), over
`bulk`, `outlet`, `saver` and `copies`, and a `thread` that does what it is given to do. `faults` is the
misfortune, and `checkers` (membership), `history` (steps) and `truth` (states) are the promises.
"""
