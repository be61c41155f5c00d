"""The messages between the server and the process that downloads.

They are frames (`engine.wire.framing`): one `Wanted`, then reports until the end.
"""

import msgspec


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The files to download: a model of a repository or of a URL, only its projector or its draft
    model, or a repository's preset file."""

    repository: str = ""  # user/repo[:quant]
    file: str = ""  # a file of the repository; "" = chosen by the quantization
    token: str = ""  # "" = the token that huggingface_hub finds
    url: str = ""
    image: str = ""  # a registry's repository: [HOST/]NAME[:TAG]
    projector: bool = True  # also download a projector of the repository
    projector_url: str = ""
    draft_repository: str = ""
    draft_file: str = ""  # a file of the draft repository, like `file`
    offline: bool = False
    preset: bool = False  # only the repository's preset file


class Transfer(msgspec.Struct, frozen=True, tag=True):
    """The progress of the download, for all files of the model."""

    file: str  # the file that is being downloaded
    n_done: int  # bytes
    n_total: int  # bytes; 0 while unknown
    digest: str = ""  # SHA-256 of the model's (first) file; "" = unknown


class Notice(msgspec.Struct, frozen=True, tag=True):
    """A warning for the user; the download continues."""

    text: str


class Fetched(msgspec.Struct, frozen=True, tag=True):
    """The successful end: the paths of the files."""

    model: str  # path of the (first part of the) model; "" if none was requested
    projector: str  # "" = none
    preset: str = ""  # path of the preset file; "" = none
    draft: str = ""  # path of the (first part of the) draft model; "" = none


class FetchFailed(msgspec.Struct, frozen=True, tag=True):
    """The failed end: the reason in one line for the user."""

    message: str


Report = Transfer | Notice | Fetched | FetchFailed

wanted_decoder = msgspec.msgpack.Decoder(Wanted)
report_decoder = msgspec.msgpack.Decoder(Report)
