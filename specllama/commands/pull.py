"""`specllama pull`: downloads a model, as the server does at its start."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from specllama import logs
from specllama.engine.catalog.locations import shown_size
from specllama.engine.helpers.download.downloader import FetchError, Transfer, fetch
from specllama.engine.options import OptionError
from specllama.handlers.options import parse
from specllama.progress import ModelProgress


def main(argv: Sequence[str]) -> int:
    """Shows the progress, and prints the path of the file. Returns 0, or 1 after one line about an
    error."""
    parser = argparse.ArgumentParser(
        prog="specllama pull",
        description="Downloads a model from the Hugging Face Hub, a URL, or an OCI registry. "
        "An interrupted download is resumed; files that exist are not downloaded again.",
    )
    parser.add_argument(
        "name", metavar="NAME", help="USER/REPO, USER/REPO:QUANT, or an http(s) URL of a GGUF file"
    )
    parser.add_argument(
        "--docker",
        action="store_true",
        help="NAME is a model in an OCI registry, [HOST/]MODEL[:TAG]",
    )
    parser.add_argument(
        "--file",
        default="",
        metavar="FILE",
        help="file of the repository to download; overrides QUANT",
    )
    parser.add_argument(
        "--token", default="", help="token for repositories that aren't public (default: HF_TOKEN)"
    )
    given = parser.parse_args(argv)
    is_address = given.name.startswith(("http://", "https://"))
    option = "--docker-repo" if given.docker else "--model-url" if is_address else "--hf-repo"
    words = [option, given.name]
    words += ["--hf-file", given.file] if given.file else []
    words += ["--hf-token", given.token] if given.token else []
    try:
        options = parse(words, os.environ)
    except OptionError as error:
        return _failed(str(error).removeprefix(f"{option}: "))
    logs.configure(options.log)
    logging.getLogger("specllama.download").setLevel(logging.INFO)
    fetched: list[Transfer] = []

    def show(transfer: Transfer) -> None:
        if not fetched and transfer.n_done == transfer.n_total:
            return  # the file exists already
        fetched[:] = [transfer]
        display.download(given.name, transfer)

    try:
        with ModelProgress() as display:
            found = asyncio.run(fetch(options.model, show))
    except FetchError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return _failed("interrupted; the same command resumes the download")
    how = f"downloaded {shown_size(fetched[0].n_total)}" if fetched else "already downloaded"
    print(f"{given.name}: {how}", file=sys.stderr)
    print(found.engine.model.model)
    return 0


def _failed(message: str) -> int:
    print(f"specllama pull: error: {message}", file=sys.stderr)
    return 1
