"""The protocol under a seed: the real cores, a simulated world, and checkers that never look away.

One seed decides everything: how long each message takes and whether it arrives, who crashes, sleeps, hangs
or is cut off and when. So one number replays any run, and a violation prints it together with a transcript.

`world` is time and randomness; `network`, `mesh` and `store` are what lies between the nodes. `nodes` and
`replica` wrap the cores of `outlast.protocol` exactly as production does, `engine` and `trainer` do what a
training process does with its steps. `faults` is the misfortune, and `checkers` (membership) and `history`
(steps) are the promises.
"""
