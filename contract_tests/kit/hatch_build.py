"""Builds the distribution `specllama-contract` from this folder and the description next to it.

In the repository the kit is `contract_tests.kit`. Installed, it is `specllama_contract`, with a
copy of the description. A source distribution has one as well, so that wheels can be built from it.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).parent
BESIDE = HERE.parents[1] / "openapi"  # in the repository
DESCRIPTION = BESIDE if (BESIDE / "server.yaml").exists() else HERE / "openapi"
HERE_NAME, INSTALLED_NAME = "contract_tests.kit", "specllama_contract"
LEFT_OUT = ("hatch_build.py", "description/")
"""Files that the build leaves out: itself, and tests of the description, which a release has
passed."""


class Version(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        found = re.search(
            r"^  version: (\S+)$", (DESCRIPTION / "server.yaml").read_text("utf-8"), re.M
        )
        if found is None:
            raise ValueError(f"{DESCRIPTION} has no version")
        metadata["version"] = found[1]


class Contents(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        included: dict[str, str] = build_data["force_include"]
        if self.target_name == "sdist":
            included[str(DESCRIPTION)] = "openapi"
            return
        if version == "editable":
            raise ValueError("the kit can't be installed editable: its repository uses it in place")
        self._directory = tempfile.TemporaryDirectory(prefix="specllama-contract-")
        renamed = Path(self._directory.name)
        included[str(DESCRIPTION)] = f"{INSTALLED_NAME}/openapi"
        for path in sorted([*HERE.rglob("*.py"), HERE / "running.ini"]):
            name = path.relative_to(HERE).as_posix()
            if name.startswith(LEFT_OUT):
                continue
            copy = renamed / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text("utf-8").replace(HERE_NAME, INSTALLED_NAME), "utf-8")
            included[str(copy)] = f"{INSTALLED_NAME}/{name}"
        for name, text in (
            ("__init__.py", '"""Contract tests for any server of llama-server\'s API."""\n'),
            ("py.typed", ""),
        ):
            (renamed / name).write_text(text, "utf-8")
            included[str(renamed / name)] = f"{INSTALLED_NAME}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.target_name == "wheel":
            self._directory.cleanup()
