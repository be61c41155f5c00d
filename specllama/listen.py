"""The sockets to listen on, which are bound before anything else starts.

So a port in use is reported at once, and port 0 is replaced by a real port before it is printed.
"""

import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

# ---- The process that listens on a TCP port of this machine, from Linux' /proc.


LISTENING = "0A"
"""The state of listening sockets in /proc/net/tcp."""


def listener(port: int, proc: Path = Path("/proc")) -> str:
    """Returns the name and the process id of the program that listens on `port`; "" if it can't be
    found, for example because the process is another user's. `proc` is replaced by tests."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    if not sockets:
        return ""
    for folder in proc.iterdir():
        if folder.name.isdigit() and any(link in sockets for link in _open_files(folder)):
            try:
                name = (folder / "comm").read_text("utf-8", "replace").strip()
            except OSError:
                continue  # the process has ended
            return f"{name} (process {folder.name})"
    return ""


def _inodes(port: int, proc: Path) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                found.add(words[9])
    return found


def _open_files(folder: Path) -> Iterator[str]:
    try:
        links = list((folder / "fd").iterdir())
    except OSError:
        return
    for link in links:
        with contextlib.suppress(OSError):  # the file was closed meanwhile
            yield os.readlink(link)


BACKLOG = 16_384
"""The length of the list of connections that wait to be accepted; the system may limit it."""
_FREE_PORT_ATTEMPTS = 8
_UNUSABLE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

_Address = tuple[int, str, tuple[object, ...]]  # family, host as given, address to bind


class ListenError(Exception):
    """The server can't listen on an address. The message is one line for the user."""


class Listeners:
    """Listening sockets for all of `hosts`; a context manager that closes them.

    A host that ends with .sock is the path of a UNIX socket; its file is removed at the end. With
    port 0, all TCP sockets get the same free port. With `reuse_port`, other processes that also set
    it can listen on the same port. Raises `ListenError`.
    """

    def __init__(self, hosts: Sequence[str], port: int, *, reuse_port: bool = False) -> None:
        self.tcp: list[socket.socket] = []
        self.unix: list[socket.socket] = []
        self._files: list[tuple[str, os.stat_result]] = []
        tcp_hosts = [host for host in hosts if not host.endswith(".sock")]
        try:
            for host in hosts:
                if host.endswith(".sock"):
                    self._add_unix(host)
            if tcp_hosts:
                self.tcp = _tcp_sockets(tcp_hosts, port, reuse_port)
        except BaseException:
            self.close()
            raise

    def urls(self, scheme: str, prefix: str) -> list[str]:
        """Returns the URLs of the server; UNIX sockets are `unix:PATH`."""
        urls = []
        for sock in self.tcp:
            host, port = sock.getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            urls.append(f"{scheme}://{address}:{port}{prefix}")
        return urls + [f"unix:{path}" for path, _ in self._files]

    def close(self) -> None:
        for sock in (*self.tcp, *self.unix):
            sock.close()
        for path, bound in self._files:
            try:
                if os.path.samestat(os.lstat(path), bound):  # another server may have replaced it
                    os.unlink(path)
            except OSError:
                pass  # another process has removed it
        self._files.clear()

    def __enter__(self) -> "Listeners":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _add_unix(self, path: str) -> None:
        if sys.platform == "win32":
            raise ListenError(f"cannot listen on {path}: Windows has no UNIX sockets for Python")
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.unix.append(sock)
        try:
            sock.bind(path)
            sock.listen(BACKLOG)
            self._files.append((path, os.lstat(path)))
        except OSError as error:
            raise ListenError(f"cannot listen on {path}: {_reason(error)}") from None


def _remove_stale(path: str) -> None:
    """Removes the file of a socket on which no process listens. Raises ListenError for any other
    file."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {_reason(error)}") from None
    if not is_socket:
        raise ListenError(f"cannot listen on {path}: it exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1)
            probe.connect(path)
        except ConnectionRefusedError:
            pass
        except OSError as error:
            raise ListenError(f"cannot listen on {path}: {_reason(error)}") from None
        else:
            raise ListenError(f"cannot listen on {path}: another server is listening on it")
    try:
        os.unlink(path)
    except OSError as error:
        raise ListenError(f"cannot replace {path}: {_reason(error)}") from None


def _tcp_sockets(hosts: Sequence[str], port: int, reuse_port: bool) -> list[socket.socket]:
    """Returns listening sockets for every address of the hosts."""
    # Two names may have the same address, which can be bound only once.
    resolved = {(a[0], a[2]): a for host in hosts for a in _resolve(host)}
    addresses = list(resolved.values())
    attempts = _FREE_PORT_ATTEMPTS if port == 0 and len(addresses) > 1 else 1
    while True:
        attempts -= 1
        try:
            return _bind_all(
                addresses, port, separate_families=len(hosts) > 1, reuse_port=reuse_port
            )
        except _PortTakenError as error:
            if not attempts:
                raise ListenError(str(error)) from None


class _PortTakenError(ListenError):
    """Another program listens on the port."""


def _resolve(host: str) -> list[_Address]:
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot listen on {host}: {_reason(error)}") from None
    return [(family, host, address) for family, _, _, _, address in found]


def _bind_all(
    addresses: Sequence[_Address], port: int, *, separate_families: bool, reuse_port: bool
) -> list[socket.socket]:
    bound: list[socket.socket] = []
    unusable: ListenError | None = None
    try:
        for family, host, address in addresses:
            try:
                sock = _bind(family, host, address, port, separate_families, reuse_port)
            except _UnusableError as error:
                unusable = error  # a name may have addresses that this machine doesn't have
                continue
            bound.append(sock)
            port = sock.getsockname()[1]
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    if not bound and unusable is not None:
        raise ListenError(str(unusable))
    return bound


class _UnusableError(ListenError):
    """This machine does not have the address."""


def _bind(
    family: int,
    host: str,
    address: tuple[object, ...],
    port: int,
    separate_families: bool,
    reuse_port: bool,
) -> socket.socket:
    where = f"{host} port {port}"
    try:
        # asyncio sets TCP_NODELAY only on sockets with an explicit protocol. Without it, small
        # answers wait for the client's delayed acknowledgement.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise _UnusableError(f"cannot listen on {where}: {_reason(error)}") from None
    try:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port and hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # Alone, :: also accepts IPv4 clients; together with 0.0.0.0, that would conflict.
            only_ipv6 = separate_families or address[0] != "::"
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
        sock.bind((address[0], port, *address[2:]))
        # From now on another server can't bind the address, and clients can connect.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        message = f"cannot listen on {where}: {_reason(error)}"
        if error.errno == errno.EADDRINUSE:
            owner = listener(port)
            raise _PortTakenError(f"{message}, by {owner}" if owner else message) from None
        if error.errno in _UNUSABLE:
            raise _UnusableError(message) from None
        raise ListenError(message) from None
    return sock


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
