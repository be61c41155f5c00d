"""Images in chats."""

from collections.abc import Callable, Sequence

import handlers.running.chat_batch
import handlers.running.media
from contract_tests.kit.checks import media
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.pool.client import EngineClient
from engine.protocol.media import Media
from engine.protocol.messages import PromptParts
from handlers.running.media import UnresolvedParts, media_marker
from handlers.running.served import Served

MUTANTS = Mutants("Images", "seeing")


def _change(replace: Replace, change: Callable[[PromptParts], PromptParts]) -> None:
    """Prompts are changed once their images are decoded."""
    original = handlers.running.media.resolved

    async def resolved(
        model: Served,
        engine: EngineClient,
        prompts: Sequence[UnresolvedParts],
        *,
        watch: bool = True,
    ) -> list[PromptParts]:
        return [change(each) for each in await original(model, engine, prompts, watch=watch)]

    replace(handlers.running.chat_batch, "resolved", resolved)


def _images(prompt: PromptParts) -> list[Media]:
    return [part for part in prompt if isinstance(part, Media)]


def _with_images(prompt: PromptParts, images: Sequence[Media]) -> PromptParts:
    following = iter(images)
    return [next(following) if isinstance(part, Media) else part for part in prompt]


@MUTANTS.caught_by(media.images_are_part_of_the_prompt, "has no tokens", lies=True)
def images_are_ignored(replace: Replace) -> None:
    """The model isn't shown images."""
    _change(replace, lambda prompt: [part for part in prompt if not isinstance(part, Media)])


@MUTANTS.caught_by(media.images_are_part_of_the_prompt, "is lost", lies=True)
def one_of_several_images_is_lost(replace: Replace) -> None:
    """The model is shown the first image of several."""

    def change(prompt: PromptParts) -> PromptParts:
        first = _images(prompt)[:1]
        return [part for part in prompt if not isinstance(part, Media) or part is first[0]]

    _change(replace, change)


@MUTANTS.caught_by(media.images_have_their_places, "another order", lies=True)
def images_are_sorted(replace: Replace) -> None:
    """Images are in an order of their own."""
    _change(
        replace,
        lambda prompt: _with_images(prompt, sorted(_images(prompt), key=lambda each: each.digest)),
    )


@MUTANTS.caught_by(media.images_are_told_apart, "two images are seen as one", lies=True)
def the_first_image_is_shown_again(replace: Replace) -> None:
    """An image is taken for one that came before."""
    seen: list[Media] = []

    def change(prompt: PromptParts) -> PromptParts:
        seen.extend(_images(prompt)[: 1 - len(seen)])
        return _with_images(prompt, [seen[0] for _ in _images(prompt)])

    _change(replace, change)


@MUTANTS.caught_by(media.texts_are_no_images, "a text became an image", lies=True)
def markers_in_texts_are_images(replace: Replace) -> None:
    """A text with the server's marker shows the image once more."""

    def change(prompt: PromptParts) -> PromptParts:
        image = _images(prompt)
        made: PromptParts = []
        for part in prompt:
            if isinstance(part, str) and media_marker() in part and image:
                before, _, after = part.partition(media_marker())
                made += [before, image[0], after]
            else:
                made.append(part)
        return made

    _change(replace, change)
