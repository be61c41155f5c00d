"""One way to have a child process.

Both sides: `framing`, `exits`, `outbox`. The server's: `commands`, `head_start`, `child` and
`changes`. The child's: `stdio`, `limits` and `collecting`. A kind of child is a folder with
`parent.py`, `child.py` and `messages.py`; the engine process has `engine/pool`, `engine/worker` and
`engine/protocol` for that.
"""
