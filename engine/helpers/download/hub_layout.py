"""The layout of huggingface_hub's cache, for one repository.

    CACHE/models--user--repo/refs/main                     the commit that "main" was last time
    CACHE/models--user--repo/blobs/<digest>                contents
    CACHE/models--user--repo/snapshots/<commit>/<path>     links to them
    CACHE/.locks/models--user--repo/<digest>.lock          held by the process that downloads one

Names come from a server that may be hostile: whatever could leave the cache is refused.
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
    """True if it is the full id of a commit."""
    return _COMMIT.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """True if it is a SHA-256 (of a large file) or the SHA-1 of a git object (of a small one)."""
    return _DIGEST.fullmatch(text) is not None


def is_inside(name: str) -> bool:
    """True if a path in a repository stays below the directory it is put into, on every system:
    relative, without `..`, drives, or characters that only do harm."""
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
    """The cache's part that belongs to one repository."""

    def __init__(self, cache: Path, repository: str) -> None:
        folder = "models--" + repository.replace("/", "--")
        self._folder = cache / folder
        self._locks = cache / ".locks" / folder

    def blob(self, digest: str) -> Path:
        """The place of a complete file."""
        return self._folder / "blobs" / digest

    def partial(self, digest: str) -> Path:
        """The place of a partial download, which is resumed."""
        return self._folder / "blobs" / f"{digest}.incomplete"

    def lock(self, digest: str) -> Path:
        """The lock of huggingface_hub's own downloads of that file, too."""
        return self._locks / f"{digest}.lock"

    def file(self, commit: str, name: str) -> Path:
        """The path of a commit's file under its own name."""
        return self._folder / "snapshots" / commit / name

    def commit(self) -> str | None:
        """The commit that "main" last stood for; None if nothing is cached."""
        with suppress(OSError, UnicodeDecodeError):
            text = (self._folder / "refs" / "main").read_text("ascii").strip()
            return text if is_commit(text) else None
        return None

    def set_commit(self, commit: str) -> None:
        """Remember what "main" is. Raises OSError."""
        path = self._folder / "refs" / "main"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"main.{os.getpid()}.new")
        new.write_text(commit, "ascii")
        new.replace(path)

    def names(self) -> list[str]:
        """The files of `commit()` that are there, in order."""
        commit = self.commit()
        if commit is None:
            return []
        root = self._folder / "snapshots" / commit
        return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())

    def link(self, digest: str, commit: str, name: str) -> Path:
        """Give a blob its name in a commit. Where links can't be made (on Windows they need a
        privilege), the file itself goes there, as huggingface_hub does it. Raises OSError."""
        blob, path = self.blob(digest), self.file(commit, name)
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link to a blob that was deleted
        try:
            path.symlink_to(os.path.relpath(blob, path.parent))
        except FileExistsError:
            pass  # by another process, just now
        except OSError:
            shutil.move(blob, path)
        return path
