"""Reports on the installed llama.cpp: writes a `BuildReport` as JSON to stdout.

python -m specllama.engine.worker.backend.report      (started by engine.wire.build_report)
"""

import os
import sys

import msgspec

from specllama.engine.errors import BackendError
from specllama.engine.host import this_processor
from specllama.engine.wire.build_report import BuildReport, Device
from specllama.engine.worker.backend import kernels, loaded, verdict
from specllama.engine.worker.backend.library import devices, initialize
from specllama.engine.worker.backend.verdict import Measure


def report() -> BuildReport:
    """Makes the report, after a new test of the kernels, and stores the verdict."""
    processor = this_processor()
    tried = kernels.to_try(processor)
    measure, reason, remark, error = Measure.AS_BUILT, "", "", ""
    found: list[Device] = []
    libraries, conflict = loaded.libraries(), ""
    try:
        loaded.check(libraries)
    except BackendError as e:
        conflict = str(e)
    try:
        if tried:
            new = verdict.find(kernels.library(), processor, os.environ, afresh=True)
            reason = new.reason
        initialize()
        measure, remark = kernels.settle()
        found = [Device(*device) for device in devices()]
    except BackendError as e:
        error = str(e) if not conflict else ""
    return BuildReport(
        library=str(kernels.library()) if sys.platform == "linux" else "",
        libraries=[str(path) for path in libraries],
        conflict=conflict,
        features=kernels.features(),
        tried=[each.feature for each in tried],
        measure=measure,
        reason=reason,
        remark=remark,
        error=error,
        devices=found,
    )


if __name__ == "__main__":
    # llama.cpp prints while it looks for devices: that goes to stderr.
    sink = os.dup(1)
    os.dup2(2, 1)
    with open(sink, "wb") as file:
        file.write(msgspec.json.encode(report()))
