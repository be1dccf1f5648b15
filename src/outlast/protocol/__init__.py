"""The decisions of Outlast as pure state machines: no sockets, no disks, no clocks, no processes.

Each core takes an event and the time, `core.handle(event, now)`, and returns the actions that somebody else
carries out. The same classes run in production, behind thin adapters, and in the simulator, under a seed.

Read them in this order: `views` (the vocabulary), `messages` (what is said), `timing` (one knob),
`roster` (what a change does to the membership), `election` and `coordinator` (who decides, and when),
`member` and `supervision` (how replicas and agents obey), `detector`, `hang` and `complaints` (who is
suspected), `standstill` (when nobody is), `tree` and `assignment` (who computes what).
"""
