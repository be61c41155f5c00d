"""Images, sounds, videos and PDF files in the page, with a model for images and sounds."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from contract_tests.kit.provocations_of_media import recording
from contract_tests.kit.server import Launcher, OwnServer, Start
from contract_tests.own.page.visits import Visit, expect
from tests.support.pdf_files import pdf, words
from tests.support.video_files import video_file


@pytest.fixture(scope="module")
def sensing(browser: object, module_server: Start, launcher: Launcher) -> OwnServer:
    """`browser` comes first, so that no server starts without one."""
    model, projector = map(launcher.model_file, ("tiny-window", "tiny-mmproj-both"))
    return module_server("-m", model, "--mmproj", projector, "-n", "8")


def test_media_are_sent_and_answered(visit: Visit, sensing: OwnServer, tmp_path: Path) -> None:
    image, sound, document = tmp_path / "a.png", tmp_path / "b.wav", tmp_path / "c.pdf"
    film = tmp_path / "d.webm"
    film.write_bytes(video_file("webm", "libvpx"))
    Image.new("RGB", (40, 30), "red").save(image)
    sound.write_bytes(recording())
    document.write_bytes(pdf(words("Llamas carry wool.")))
    visit.open(sensing.url)
    visit.page.get_by_role(
        "button", name="Add files: texts, PDFs, images, sounds, videos"
    ).wait_for()
    visit.find("input[type=file]").set_input_files([image, sound, document, film])
    visit.find(".composer .file.image img").wait_for()
    visit.find(".composer .file.audio audio").wait_for()
    visit.find(".composer .file.pdf >> text=c.pdf").wait_for()
    visit.find(".composer .file.video video").wait_for()
    with visit.page.expect_request("**/v1/chat/completions") as sent:
        visit.ask("What is this?")
    body: Any = sent.value.post_data_json
    *parts, text = body["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "input_audio", "file", "input_video"]
    assert parts[2]["file"]["filename"] == "c.pdf"
    assert text["text"] == "What is this?"
    response = sent.value.response()
    assert response is not None
    assert response.status == 200
    # The model is named by its file: the page shows no folders.
    expect(visit.find(".picker")).to_have_text(Path(body["model"]).name)
    visit.reload()
    visit.find(".file.pdf >> text=c.pdf").wait_for()  # kept with the conversation
    visit.find(".file.video video").wait_for()


def test_unreadable_files_are_reported(visit: Visit, sensing: OwnServer, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pdf"
    damaged.write_bytes(b"%PDF-1.7 and nothing")
    visit.expected.append("400")
    visit.open(sensing.url)
    visit.find("input[type=file]").set_input_files([damaged])
    visit.find(".composer .file.pdf").wait_for()
    visit.say("Read it")
    visit.find("text=damaged or incomplete PDF file").first.wait_for()
