"""Writes the libraries of the page into `handlers/webui/vendor`: `python -m tools.webui`.

Needs npm. Ends with an error if a package's content isn't the pinned one. Only developers need it,
because its output is part of the repository.
"""

import base64
import hashlib
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).parents[2] / "handlers" / "webui" / "vendor"
LICENSES = "licenses.txt"


@dataclass(frozen=True)
class Library:
    """An npm package: its license, the SHA-512 of its archive, and the files to copy, by their new
    names. Files of a pattern keep their names."""

    package: str
    version: str
    license: str
    sha512: str
    files: Mapping[str, str]


LIBRARIES = (
    Library(
        "marked",
        "18.2.1",
        "MIT",
        "ii4bxCTCqqwpT86XZWgJNs+ZnAIZksmLGYMViWA7PDIXYIeNo1x6cDdX3JOip9NM/cI6p8z57FxliACboTruMA==",
        {"lib/marked.esm.js": "marked.esm.js", "LICENSE": "marked.LICENSE.txt"},
    ),
    Library(
        "dompurify",
        "3.4.18",
        "MPL-2.0 OR Apache-2.0",
        "ofe3wI/uNm68HInABYFJYqQxRw1EaKAjNdrFVKqjUY+UZurvNd2L/HuQe097s/4RivWiZyP6tT7aoT8atjfhwg==",
        {"dist/purify.min.js": "purify.min.js", "LICENSE": "purify.LICENSE.txt"},
    ),
    Library(
        "@highlightjs/cdn-assets",
        "11.12.0",
        "BSD-3-Clause",
        "KvOKXODaiFmId9xaq3xc5xCL66wVLUuOngDbO9B/kewbFTqdGbn2nJxNhN3H5R1cgDTVj6R8vH0zgiNDEGjpDw==",
        {"es/highlight.min.js": "highlight.min.js", "LICENSE": "highlight.LICENSE.txt"},
    ),
    Library(
        "katex",
        "0.19.1",
        "MIT",
        "jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr5614uRrEfA==",
        {
            "dist/katex.min.js": "katex.min.js",
            "dist/katex.min.css": "katex.min.css",
            "dist/fonts/*.woff2": "",
            "LICENSE": "katex.LICENSE.txt",
        },
    ),
)


def archive(library: Library, directory: Path) -> Path:
    """Returns the package's pinned archive in `directory`. Raises SystemExit for another
    content."""
    name = f"{library.package}@{library.version}"
    command = ("npm", "pack", "--silent", "--ignore-scripts", name)
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    path = directory / done.stdout.split()[-1]
    found = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    if found != library.sha512:
        raise SystemExit(f"{name} is not the pinned archive: its SHA-512 is {found}")
    return path


def taken(library: Library, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of each file to copy from an archive."""
    with tarfile.open(path) as archived:
        for wanted, name in library.files.items():
            found = [each for each in archived if Path(each.name).match(f"package/{wanted}")]
            if not found:
                raise SystemExit(f"{library.package} has no {wanted}")
            for each in found:
                file = archived.extractfile(each)
                assert file is not None
                yield name or Path(each.name).name, adapted(name, file.read())


def adapted(name: str, content: bytes) -> bytes:
    """Adapts a file to the page: fonts are next to the style sheet, and only WOFF2 is kept."""
    if name != "katex.min.css":
        return content
    text = content.decode()
    text = re.sub(r",url\([^)]*\) format\(\"(woff|truetype)\"\)", "", text)
    return text.replace("url(fonts/", "url(").encode()


def licenses() -> str:
    """Returns the licenses that `specllama --license` prints."""
    return "".join(f"{each.package} {each.version}: {each.license}\n" for each in LIBRARIES)


def main() -> None:
    VENDOR.mkdir(parents=True, exist_ok=True)
    for old in VENDOR.iterdir():
        old.unlink()
    (VENDOR / LICENSES).write_text(licenses(), "utf-8")
    with tempfile.TemporaryDirectory() as directory:
        for library in LIBRARIES:
            for name, content in taken(library, archive(library, Path(directory))):
                (VENDOR / name).write_bytes(content)


if __name__ == "__main__":
    main()
