"""The status of a model, which is there without waiting."""

from typing import Literal

import msgspec

from specllama.engine.helpers.download.downloader import Transfer
from specllama.engine.pool.lifecycle import State
from specllama.engine.pool.supervisor import Supervisor
from specllama.engine.wire.replies import ModelInfo

StatusValue = Literal["unloaded", "downloading", "loading", "loaded", "sleeping"]

_VALUES: dict[State, StatusValue] = {
    "downloading": "downloading",
    "downloaded": "unloaded",
    "loading": "loading",
    "ready": "loaded",
    "dozing": "loaded",
    "sleeping": "sleeping",
    "waking": "loading",
    "restarting": "loading",
    "failed": "unloaded",
    "draining": "loaded",
    "stopped": "unloaded",
}


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `waiting`: requests wait until there is room to load it, whatever its value says.
    `failed`, `failure` (one line) and `exit_code` are about the last attempt to load it; there is
    no exit code if it could not even be downloaded."""

    value: StatusValue = "unloaded"
    waiting: bool = False
    progress: float = 0.0  # of downloading or loading, 0..1
    transfer: Transfer | None = None  # of the download
    failed: bool = False
    failure: str = ""
    exit_code: int | None = None  # of the last engine process; negative: minus a signal
    info: ModelInfo | None = None  # known from the first loading until it is unloaded

    @classmethod
    def of(cls, supervisor: Supervisor) -> "ModelStatus":
        """Of a model that has a supervisor."""
        return cls(
            value=_VALUES[supervisor.state],
            progress=supervisor.progress,
            transfer=supervisor.transfer,
            failed=supervisor.state == "failed",
            failure=supervisor.failure,
            exit_code=supervisor.exit_code,
            info=supervisor.info,
        )
