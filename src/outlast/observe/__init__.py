"""What a run tells of itself while it runs, and whether it kept its promises.

Cores say what happened (`protocol/events.py`); here it is queued (`queue.py`), written down (`files.py`,
`logs.py`), read again (`reading.py`), put into words (`sentences.py`) and checked (`promises.py`).
"""
