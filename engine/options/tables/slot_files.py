"""The option of the files that slots are saved to."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import files
from specllama.engine.options.declaration import Opt

_slot_files = partial(Opt, group="Server")


class SlotFileOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Where slots are saved, and restored from."""

    slot_save_path: Annotated[
        str,
        _slot_files(
            names="--slot-save-path",
            metavar="DIR",
            help="Directory of the files that POST /slots/{id_slot} saves and restores.",
            default="none (the operation is switched off)",
            file=files.check_directory,
        ),
    ] = ""
