"""Options of media: impossible combinations, and names of domains."""

import pytest

from specllama.engine.options import OptionError, text_values
from specllama.handlers.options import parse


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--image-min-tokens", "9", "--image-max-tokens", "8"], "more than --image-max-tokens 8"),
        (["--media-domains", "example.org"], "--media-domains .*--media-urls"),
        (["--media-private-addresses"], "--media-private-addresses .*--media-urls"),
        (["--media-path", "/nowhere/at/all"], "--media-path"),
        (["--media-max-bytes", "0"], "out of range"),
    ],
)
def test_impossible_values(argv: list[str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parse(argv, {})


@pytest.mark.parametrize("name", ["none", "CUDA0"])
def test_the_device_of_the_projector(name: str) -> None:
    media = parse([], {"MTMD_BACKEND_DEVICE": name}).model.engine.media
    assert media.mmproj_device == name
    assert parse(["-mmdev", "CUDA1"], {"MTMD_BACKEND_DEVICE": name}).model.engine.media == (
        parse(["--mmproj-device", "CUDA1"], {}).model.engine.media
    )


def test_fetching_is_off_by_default() -> None:
    media = parse([], {}).model.media
    assert (media.media_urls, media.media_private_addresses, media.media_path) == (False, False, "")
    given = parse(["--media-urls", "--media-domains", "*.Example.org,b.net."], {}).model.media
    assert (given.media_urls, given.media_domains) == (True, ("example.org", "b.net"))


def test_min_tokens_alone() -> None:
    parse(["--image-min-tokens", "9", "--image-max-tokens", "-1"], {})
    parse(["--image-max-tokens", "9"], {})


@pytest.mark.parametrize("text", ["a/b", "http://a", "a b", "a..b", ".", "*", "a@b", "a:80"])
def test_invalid_domains(text: str) -> None:
    with pytest.raises(OptionError, match="domain"):
        text_values.domains(text)
