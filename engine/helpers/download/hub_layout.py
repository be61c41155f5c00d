"""The layout of huggingface_hub's cache, for one repository.

    CACHE/models--user--repo/refs/main                     the last known commit of "main"
    CACHE/models--user--repo/blobs/<digest>                contents
    CACHE/models--user--repo/snapshots/<commit>/<path>     links to the contents
    CACHE/.locks/models--user--repo/<digest>.lock          held by the process that downloads it

Names come from a server that may be hostile: names that could leave the cache are rejected.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_commit(text: str) -> bool:
    """Returns whether the text is the full id of a commit."""
    return _COMMIT.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Returns whether the text is a SHA-256 (of a large file) or the SHA-1 of a git object (of a
    small one)."""
    return _DIGEST.fullmatch(text) is not None


def is_inside(name: str) -> bool:
    """Returns whether a path in a repository stays below its directory on every system: relative,
    without `..`, drives, or control characters."""
    path, windows = PurePosixPath(name), PureWindowsPath(name)
    return (
        bool(path.parts)
        and str(path) == name
        and not path.is_absolute()
        and not windows.drive
        and not windows.root
        and ".." not in windows.parts
        and "\\" not in name
        and _CONTROL.search(name) is None
    )


class RepositoryCache:
    """The part of the cache that belongs to one repository."""

    def __init__(self, cache: Path, repository: str) -> None:
        folder = "models--" + repository.replace("/", "--")
        self._folder = cache / folder
        self._locks = cache / ".locks" / folder

    def blob(self, digest: str) -> Path:
        """Returns the path of a complete file."""
        return self._folder / "blobs" / digest

    def partial(self, digest: str) -> Path:
        """Returns the path of a partial download, which can be resumed."""
        return self._folder / "blobs" / f"{digest}.incomplete"

    def lock(self, digest: str) -> Path:
        """Returns the path of the lock, which huggingface_hub's own downloads of the file also
        use."""
        return self._locks / f"{digest}.lock"

    def file(self, commit: str, name: str) -> Path:
        """Returns the path of a commit's file under its own name."""
        return self._folder / "snapshots" / commit / name

    def commit(self) -> str | None:
        """Returns the last known commit of "main"; None if nothing is cached."""
        with suppress(OSError, UnicodeDecodeError):
            text = (self._folder / "refs" / "main").read_text("ascii").strip()
            return text if is_commit(text) else None
        return None

    def set_commit(self, commit: str) -> None:
        """Stores the commit of "main". Raises OSError."""
        path = self._folder / "refs" / "main"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"main.{os.getpid()}.new")
        new.write_text(commit, "ascii")
        new.replace(path)

    def names(self) -> list[str]:
        """Returns the existing files of `commit()`, in order."""
        commit = self.commit()
        if commit is None:
            return []
        root = self._folder / "snapshots" / commit
        return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())

    def link(self, digest: str, commit: str, name: str) -> Path:
        """Links a blob to its name in a commit. If links can't be created (on Windows they need a
        privilege), the file itself is moved there, as huggingface_hub does. Raises OSError."""
        blob, path = self.blob(digest), self.file(commit, name)
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link to a blob that was deleted
        try:
            path.symlink_to(os.path.relpath(blob, path.parent))
        except FileExistsError:
            pass  # created by another process
        except OSError:
            shutil.move(blob, path)
        return path
