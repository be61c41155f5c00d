"""Images in chats."""

from collections.abc import Callable
from typing import Any

from contract_tests.kit.checks import media
from contract_tests.kit.mutants.exchange import Mutation
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import at, bodies, observed, together

MUTANTS = Mutants("Images", "seeing")

CHAT = "create_chat_completion"
Parts = list[dict[str, Any]]


def _change(change: Callable[[Parts], Parts]) -> Mutation:
    """Changes the parts of each message that has parts."""
    return bodies(_of_messages(change), CHAT)


def _of_messages(change: Callable[[Parts], Parts]) -> Callable[[Any], Any]:
    def of_content(content: Any) -> Any:
        return change(content) if isinstance(content, list) else content

    return at("messages.*.content", of_content)


def _images(parts: Parts) -> Parts:
    return [part for part in parts if part["type"] == "image_url"]


def _with_images(parts: Parts, images: Parts) -> Parts:
    following = iter(images)
    return [next(following) if part["type"] == "image_url" else part for part in parts]


@MUTANTS.caught_by(media.images_are_part_of_the_prompt, "has no tokens", as_described=True)
def images_are_ignored() -> Mutation:
    """The model gets no images."""
    return _change(lambda parts: [part for part in parts if part["type"] != "image_url"])


@MUTANTS.caught_by(media.images_are_part_of_the_prompt, "is lost", as_described=True)
def one_of_several_images_is_lost() -> Mutation:
    """The model gets only the first of several images."""

    def change(parts: Parts) -> Parts:
        lost = _images(parts)[1:]
        return [part for part in parts if not any(part is each for each in lost)]

    return _change(change)


@MUTANTS.caught_by(media.images_have_their_places, "another order", as_described=True)
def images_are_sorted() -> Mutation:
    """Images are sorted, so they are not in the client's order."""
    return _change(
        lambda parts: _with_images(
            parts, sorted(_images(parts), key=lambda each: str(each["image_url"]["url"]))
        )
    )


@MUTANTS.caught_by(media.images_are_distinguished, "two images are seen as one", as_described=True)
def the_first_image_is_shown_again() -> Mutation:
    """An image is replaced by an earlier one."""
    seen: Parts = []

    def change(parts: Parts) -> Parts:
        seen.extend(_images(parts)[: 1 - len(seen)])
        return _with_images(parts, [seen[0] for _ in _images(parts)])

    return _change(change)


@MUTANTS.caught_by(media.texts_are_no_images, "a text became an image", as_described=True)
def markers_in_texts_are_images() -> Mutation:
    """A text with the server's marker inserts the image once more."""
    marker = "<__media__>"

    def note(props: dict[str, Any]) -> None:
        nonlocal marker
        marker = props.get("media_marker") or marker

    def change(parts: Parts) -> Parts:
        changed: Parts = []
        for part in parts:
            before, found, after = str(part.get("text", "")).partition(marker)
            if found and (images := _images(parts)):
                texts = [{"type": "text", "text": text} for text in (before, after)]
                changed += [texts[0], images[0], texts[1]]
            else:
                changed.append(part)
        return changed

    return together(observed(note, "get_props"), _change(change))
