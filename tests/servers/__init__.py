"""Real servers for tests, on free ports of 127.0.0.1, each with a folder of its own.

They are killed when a test ends as well as when the process that tests dies, whatever it dies of.
"""
