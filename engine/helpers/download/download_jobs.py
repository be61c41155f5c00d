"""The messages between the server and the process that downloads.

They go as frames (`engine.wire.framing`): one `Wanted`, then reports until the end.
"""

import msgspec


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The files to download: a model of a repository or of a URL, its projector or its draft model
    alone, or a repository's preset file."""

    repository: str = ""  # user/repo[:quant]
    file: str = ""  # of the repository; "" = chosen by the quantization
    token: str = ""  # "" = the one that huggingface_hub finds
    url: str = ""
    image: str = ""  # of a registry: [HOST/]NAME[:TAG]
    projector: bool = True  # look for one in the repository
    projector_url: str = ""
    draft_repository: str = ""
    draft_file: str = ""  # of that one, as `file`
    offline: bool = False
    preset: bool = False  # the repository's preset file, and nothing else


class Transfer(msgspec.Struct, frozen=True, tag=True):
    """The progress of the download, over all files of the model."""

    file: str  # that is being downloaded
    n_done: int  # bytes
    n_total: int  # bytes; 0 while it is not known
    digest: str = ""  # SHA-256 of the model's (first) file; "" = the server tells none


class Notice(msgspec.Struct, frozen=True, tag=True):
    """A warning for the user; the download goes on."""

    text: str


class Fetched(msgspec.Struct, frozen=True, tag=True):
    """The end: where the files are."""

    model: str  # path of the (first part of the) model; "" if none was wanted
    projector: str  # "" = none
    preset: str = ""  # path of the preset file; "" = none
    draft: str = ""  # path of the (first part of the) draft model; "" = none


class FetchFailed(msgspec.Struct, frozen=True, tag=True):
    """The end: why there is nothing, in one line for the user."""

    message: str


Report = Transfer | Notice | Fetched | FetchFailed

wanted_decoder = msgspec.msgpack.Decoder(Wanted)
report_decoder = msgspec.msgpack.Decoder(Report)
