"""An MCP server in plain Python that does harm: `hostile.py MODE FILE`. It notes its process and
its descendants in FILE, one line each."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

MODE, NOTES = sys.argv[1], sys.argv[2]
TOOL = {"name": "act", "description": "Acts.", "inputSchema": {"type": "object"}}


def note(pid: int) -> None:
    with open(NOTES, "a", encoding="utf-8") as file:
        file.write(f"{pid}\n")


def send(document: Any, end: str = "\n") -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **document}) + end)
    sys.stdout.flush()


def answer(id: int, text: str, **more: Any) -> None:
    send({"id": id, "result": {"content": [{"type": "text", "text": text}], **more}})


def never(id: int) -> None:
    """Never answers."""


def dies(id: int) -> None:
    os._exit(3)


def is_endless(id: int) -> None:
    """Begins a line of 10 GB."""
    sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {id}, "result": {{"content": [{{"text": "')
    for _ in range(10_000):
        sys.stdout.write("x" * (1 << 20))


def floods(id: int) -> None:
    """Sends messages that never end."""
    while True:
        params = {"level": "info", "data": "x" * 10_000}
        send({"method": "notifications/message", "params": params})


def asks(id: int) -> None:
    """Sends requests of its own that never end."""
    for number in range(10**9):
        send({"id": f"r{number}", "method": "sampling/createMessage", "params": {}})


def is_large(id: int) -> None:
    answer(id, "y" * (6 << 20))


def prints(id: int) -> None:
    """Prints other things on stdout, and then answers."""
    print("no JSON at all", flush=True)
    print('{"jsonrpc": "2.0", "id": 99999, "result": {}}', flush=True)
    print('{"half": ', flush=True)
    send({"method": "notifications/message", "params": {"level": "info", "data": "note"}}, end="")
    sys.stdout.write("\n")
    answer(id, "done")


def leaks(id: int) -> None:
    """Writes a secret to stderr and to an error."""
    print("the token is", os.environ["TOKEN"], file=sys.stderr, flush=True)
    answer(id, f"no access with {os.environ['TOKEN']}", isError=True)


def has_children(id: int) -> None:
    """Leaves a process in a session of its own, which holds the pipes."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(10000)"], start_new_session=True
    )
    note(child.pid)
    answer(id, "started")


def changes(id: int) -> None:
    global TOOL
    TOOL = {**TOOL, "name": "other"}
    send({"method": "notifications/tools/list_changed"})
    answer(id, "changed")


def answers_then_dies(id: int) -> None:
    answer(id, "last words")
    os._exit(0)


def answers_nonsense(id: int) -> None:
    send({"id": id, "result": {"content": 7}})


ACTS: dict[str, Callable[[int], None]] = {
    each.__name__: each
    for each in (
        *(never, dies, is_endless, floods, asks, is_large, prints, leaks, has_children, changes),
        *(answers_then_dies, answers_nonsense),
    )
}


def tools() -> list[Any]:
    if MODE == "has_bad_tools":
        deep: Any = {}
        for _ in range(100):
            deep = {"properties": {"x": deep}}
        wide = {"type": "object", "description": "x" * (1 << 20)}
        return [TOOL, {**TOOL, "name": "wide", "inputSchema": wide}, {**TOOL, "name": "a b"}]
    return [TOOL]


def page(cursor: str | None) -> Any:
    if MODE == "has_endless_pages":
        return {"tools": tools(), "nextCursor": (cursor or "") + "x"}
    return {"tools": tools()}


def requests() -> Iterator[Any]:
    while line := sys.stdin.readline():
        yield json.loads(line)
    if MODE == "never":
        time.sleep(10_000)  # it doesn't end with its stdin, either


def serve() -> None:
    note(os.getpid())
    if MODE == "dies_at_start":
        sys.exit(f"no configuration for {os.environ.get('TOKEN')}")
    for request in requests():
        id, params = request.get("id"), request.get("params") or {}
        match request["method"]:
            case "initialize" if MODE != "is_silent":
                info = {"name": "hostile", "version": "1"}
                version = "2024-11-05"
                capabilities: Any = {"tools": {"listChanged": True}}
                result = {"protocolVersion": version, "capabilities": capabilities}
                send({"id": id, "result": {**result, "serverInfo": info}})
            case "tools/list":
                send({"id": id, "result": page(params.get("cursor"))})
            case "tools/call":
                ACTS.get(MODE, prints)(id)
            case _ if id is not None and MODE != "is_silent":
                send({"id": id, "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    serve()
