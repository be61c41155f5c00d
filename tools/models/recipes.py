"""The shape of each model that can be built. All weights are random, from a fixed seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gguf import GGMLQuantizationType as WeightType
from gguf import PoolingType

from specllama.engine.shipped import MODEL_NAME
from tools.models.encoder import Encoder
from tools.models.projector import Ear, Eye, ProjectorRecipe, Shape
from tools.models.sentencepiece import small_vocabulary
from tools.models.tokenizer import (
    Vocabulary,
    chat_vocabulary,
    extended_vocabulary,
    from_merges,
    load_merges,
)
from tools.models.wordpiece import wordpiece_vocabulary

CHAT_TEMPLATE = Path(__file__).with_name("template.jinja")
TALKER_MERGES = Path(__file__).parent / "training" / "merges.txt"


Architecture = Literal["llama", "gemma3", "mamba", "jamba", "qwen2vl"]
"""llama.cpp's names. In "jamba", every other layer is a mamba layer, beginning with the first; in
"gemma3", these are the layers with a sliding window. "qwen2vl" has positions in three
dimensions."""


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """The shape of mamba layers, which are twice as wide inside as outside."""

    n_state: int = 16
    n_conv: int = 4
    rank: int = 32


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The shape of a decoder.

    `tied` shares one matrix between the embedding and the output. `context_gain` is the strength of
    each layer's output relative to a token's own embedding: the higher it is, the more the next
    token depends on tokens before the last one. `logit_std` is the standard deviation of the logits
    of ordinary tokens. `end_bias` is added to the logits of tokens that end a generation (untied
    models only). `window` is the size of the sliding window in tokens, for layers that have one.
    `rotated` is the share of a head's channels that positions rotate, the fastest ones first; the
    other channels compare tokens at any distance (Barbero et al., "Round and round we go", 2024).
    Only "llama" supports less than 1.
    """

    architecture: Architecture = "llama"

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_ctx_train: int
    weight_type: WeightType
    tied: bool = False
    context_gain: float = 1.0
    logit_std: float = 2.0
    end_bias: float = 0.0
    window: int = 0
    rotated: float = 1.0
    state_space: StateSpace = StateSpace()

    def is_mamba(self, layer: int) -> bool:
        return self.architecture == "mamba" or (self.architecture == "jamba" and layer % 2 == 0)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model. `file_name` has no suffix; `description` is written into the file, too."""

    file_name: str
    description: str
    vocabulary: Callable[[], Vocabulary]
    decoder: Decoder
    pooling: PoolingType | None = None
    chat_template: Path | None = CHAT_TEMPLATE
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class EncoderRecipe:
    """One model that embeds or reranks. See `Recipe`."""

    file_name: str
    description: str
    vocabulary: Callable[[], Vocabulary]
    encoder: Encoder
    seed: int = 0


# Measured: with a head size below 64, llama.cpp's flash attention is half as fast. Q8_0 is the
# fastest weight type, and the only one with bit-equal logits for a token that is decoded alone or
# with other sequences.
TINY = Decoder(
    n_embd=128,
    n_layer=2,
    n_head=2,
    n_head_kv=1,
    n_ff=384,
    n_ctx_train=8192,
    weight_type=WeightType.Q8_0,
    end_bias=0.4,
)

TALKER = Recipe(
    file_name=MODEL_NAME,
    description="The model that ships with specllama: trained on made-up texts to call tools, to "
    "find values in texts, to copy and to hold short conversations in English. It knows nothing "
    "of the world.",
    vocabulary=lambda: from_merges(load_merges(TALKER_MERGES)),
    decoder=Decoder(
        n_embd=192,
        n_layer=9,
        n_head=3,
        n_head_kv=3,
        n_ff=512,
        n_ctx_train=8192,
        weight_type=WeightType.Q8_0,
        tied=True,
        rotated=0.5,
    ),
)
"""The model of `tools.models.train`, which makes its weights."""

TINY_ENCODER = Encoder(
    n_embd=64,
    n_layer=2,
    n_head=4,
    n_ff=128,
    n_ctx_train=128,
    pooling=PoolingType.MEAN,
)
TINY_RERANKER = replace(TINY_ENCODER, pooling=PoolingType.RANK, head=True)

AnyRecipe = Recipe | EncoderRecipe | ProjectorRecipe

RECIPES: dict[str, AnyRecipe] = {
    "random": Recipe(
        file_name="specllama-random",
        description="Random weights, and the chat template of the shipped model, for tests.",
        vocabulary=chat_vocabulary,
        decoder=TINY,
    ),
    "bench-100m": Recipe(
        file_name="bench-100m",
        description="Random weights in a realistic size, to measure speed with.",
        vocabulary=lambda: extended_vocabulary(152_000, seed=1),
        decoder=Decoder(
            n_embd=512,
            n_layer=8,
            n_head=8,
            n_head_kv=2,
            n_ff=1536,
            n_ctx_train=32_768,
            weight_type=WeightType.Q8_0,
            tied=True,
        ),
    ),
    "bench-draft": Recipe(
        file_name="bench-draft",
        description="A draft model for bench-100m, a tenth of its size, to measure speed with.",
        vocabulary=lambda: extended_vocabulary(152_000, seed=1),
        decoder=Decoder(
            n_embd=64,
            n_layer=2,
            n_head=2,
            n_head_kv=1,
            n_ff=192,
            n_ctx_train=32_768,
            weight_type=WeightType.Q8_0,
            tied=True,
        ),
    ),
    "bench-mmproj": ProjectorRecipe(
        file_name="mmproj-bench",
        description="Eyes for bench-100m with 22 million parameters, to measure speed with.",
        n_embd=512,
        eye=Eye(kind="mlp", image_size=336, patch_size=14),
        shape=Shape(n_embd=384, n_head=6, n_ff=1536, n_layer=13, weight_type=WeightType.F16),
    ),
    "tiny-spm": Recipe(
        file_name="tiny-spm",
        description="A SentencePiece vocabulary with a beginning-of-sequence token, for tests.",
        vocabulary=small_vocabulary,
        decoder=TINY,
        chat_template=None,
    ),
    "tiny-nochat": Recipe(
        file_name="tiny-nochat",
        description="A model without a chat template, for tests.",
        vocabulary=chat_vocabulary,
        decoder=TINY,
        chat_template=None,
    ),
    "tiny-mamba": Recipe(
        file_name="tiny-mamba",
        description="A recurrent model, whose memory can't be cut, for tests.",
        vocabulary=chat_vocabulary,
        decoder=replace(TINY, architecture="mamba"),
    ),
    "tiny-hybrid": Recipe(
        file_name="tiny-hybrid",
        description="A model with recurrent and attention layers, for tests.",
        vocabulary=chat_vocabulary,
        decoder=replace(TINY, architecture="jamba"),
    ),
    "tiny-window": Recipe(
        file_name="tiny-window",
        description="A model with a short sliding window in half of its layers, for tests.",
        vocabulary=chat_vocabulary,
        # The cells of a window are a ring, so the order of sums changes. Quantized activations
        # would amplify the rounding.
        decoder=replace(TINY, architecture="gemma3", window=32, weight_type=WeightType.F32),
    ),
    "tiny-embed": Recipe(
        file_name="tiny-embed",
        description="A decoder whose last token's vector stands for the text, for tests.",
        vocabulary=small_vocabulary,
        decoder=Decoder(
            n_embd=64,
            n_layer=2,
            n_head=4,
            n_head_kv=2,
            n_ff=128,
            n_ctx_train=512,
            weight_type=WeightType.F32,
        ),
        pooling=PoolingType.LAST,
        chat_template=None,
    ),
    "tiny-bert": EncoderRecipe(
        file_name="tiny-bert",
        description="A text encoder without causal attention, for tests.",
        vocabulary=wordpiece_vocabulary,
        encoder=TINY_ENCODER,
    ),
    "tiny-rerank": EncoderRecipe(
        file_name="tiny-rerank",
        description="A cross-encoder that judges a query and a document, for tests.",
        vocabulary=wordpiece_vocabulary,
        encoder=TINY_RERANKER,
    ),
    "tiny-rerank-template": EncoderRecipe(
        file_name="tiny-rerank-template",
        description="A cross-encoder that wants query and document in a text, for tests.",
        vocabulary=wordpiece_vocabulary,
        encoder=replace(TINY_RERANKER, rerank_template="[CLS]is {query} in {document}?[SEP]"),
    ),
    "tiny-mrope": Recipe(
        file_name="tiny-mrope",
        description="A model whose images have positions in two dimensions, for tests.",
        vocabulary=chat_vocabulary,
        decoder=replace(TINY, architecture="qwen2vl"),
    ),
    "tiny-mmproj": ProjectorRecipe(
        file_name="mmproj-tiny",
        description="Eyes for the tiny models: 16 tokens an image. For tests.",
        n_embd=TINY.n_embd,
        eye=Eye(kind="mlp", image_size=32),
    ),
    "tiny-mmproj-slices": ProjectorRecipe(
        file_name="mmproj-tiny-slices",
        description="Eyes that see large images in slices, for tests.",
        n_embd=TINY.n_embd,
        eye=Eye(kind="mlp", image_size=32, tiles=((32, 64), (64, 32), (64, 64), (96, 32))),
    ),
    "tiny-mmproj-whole": ProjectorRecipe(
        file_name="mmproj-tiny-whole",
        description="Eyes whose tokens attend to each other, for tests.",
        n_embd=TINY.n_embd,
        eye=Eye(kind="gemma3", image_size=64, merge=2),
    ),
    "tiny-mmproj-batch": ProjectorRecipe(
        file_name="mmproj-tiny-batch",
        description="Eyes that see several images at once, for tests.",
        n_embd=TINY.n_embd,
        eye=Eye(kind="internvl", image_size=64, merge=2),
    ),
    "tiny-mmproj-mrope": ProjectorRecipe(
        file_name="mmproj-tiny-mrope",
        description="Eyes for tiny-mrope, and for images of any size. For tests.",
        n_embd=TINY.n_embd,
        eye=Eye(kind="qwen2vl_merger", image_size=64),
    ),
    "tiny-mmproj-audio": ProjectorRecipe(
        file_name="mmproj-tiny-audio",
        description="Ears for the tiny models, for tests.",
        n_embd=TINY.n_embd,
        ear=Ear(),
    ),
    "tiny-mmproj-both": ProjectorRecipe(
        file_name="mmproj-tiny-both",
        description="Eyes and ears for the tiny models, for tests.",
        n_embd=TINY.n_embd,
        eye=Eye(kind="mlp", image_size=32),
        ear=Ear(),
    ),
}
