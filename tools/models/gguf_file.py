"""Writes a recipe's model as a GGUF file."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as WeightType
from gguf import GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from tools.models import encoder, projector
from tools.models.projector import ProjectorRecipe
from tools.models.recipes import AnyRecipe, Decoder, EncoderRecipe, Recipe
from tools.models.tokenizer import Vocabulary
from tools.models.weights import Tensor, tensors

FILE_TYPES = {
    WeightType.F32: LlamaFileType.ALL_F32,
    WeightType.F16: LlamaFileType.MOSTLY_F16,
    WeightType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}
NORM_EPSILON = 1e-5
ROPE_BASE = 10_000.0
ROPE_FACTORS = "rope_freqs.weight"
"""llama.cpp divides the rates of the rotations by this tensor, if a file has it."""
STILL = 1e9
"""The factor for channels that no position rotates."""


def write_model(recipe: AnyRecipe, path: Path, trained: Iterable[Tensor] | None = None) -> None:
    """Writes `path` atomically: the file is either complete or missing. The directory must exist.

    `trained` has the tensors of a decoder; without them the weights are random.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = GGUFWriter(part, _architecture(recipe))
    writer.add_name(recipe.file_name)
    writer.add_description(recipe.description)
    writer.add_license("MIT")
    if isinstance(recipe, Recipe):
        _add_decoder(writer, recipe, trained)
    elif isinstance(recipe, ProjectorRecipe):
        _add_projector(writer, recipe)
    else:
        _add_encoder(writer, recipe)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_tensors(path: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yields the tensors of a file by name, dequantized."""
    for tensor in GGUFReader(path).tensors:
        yield tensor.name, dequantize(tensor.data, tensor.tensor_type)


def rope_factors(decoder: Decoder) -> NDArray[np.float32]:
    """Returns the values of `ROPE_FACTORS` by pair of a head's channels."""
    n = decoder.n_embd // decoder.n_head // 2
    factors = np.ones(n, np.float32)
    factors[round(n * decoder.rotated) :] = STILL
    return factors


def _architecture(recipe: AnyRecipe) -> str:
    if isinstance(recipe, Recipe):
        return recipe.decoder.architecture
    return "clip" if isinstance(recipe, ProjectorRecipe) else "bert"


def _add_decoder(writer: GGUFWriter, recipe: Recipe, trained: Iterable[Tensor] | None) -> None:
    vocabulary = recipe.vocabulary()
    _add_shape(writer, recipe.decoder, len(vocabulary.tokens))
    if recipe.pooling is not None:
        writer.add_pooling_type(recipe.pooling)
    add_vocabulary(writer, vocabulary)
    if recipe.chat_template is not None:
        writer.add_chat_template(recipe.chat_template.read_text("utf-8"))
    made = tensors(recipe.decoder, vocabulary, recipe.seed) if trained is None else trained
    for name, values, weight_type in made:
        writer.add_tensor(name, quantize(values, weight_type), raw_dtype=weight_type)


def _add_encoder(writer: GGUFWriter, recipe: EncoderRecipe) -> None:
    vocabulary = recipe.vocabulary()
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(vocabulary.tokens))
    encoder.add_shape(writer, recipe.encoder)
    add_vocabulary(writer, vocabulary)
    for name, values in encoder.tensors(recipe.encoder, len(vocabulary.tokens), recipe.seed):
        writer.add_tensor(name, values)


def _add_projector(writer: GGUFWriter, recipe: ProjectorRecipe) -> None:
    writer.add_file_type(LlamaFileType.ALL_F32)
    projector.add_shape(writer, recipe)
    for name, values, weight_type in projector.tensors(recipe):
        writer.add_tensor(name, quantize(values, weight_type), raw_dtype=weight_type)


def _add_shape(writer: GGUFWriter, decoder: Decoder, n_vocab: int) -> None:
    writer.add_file_type(FILE_TYPES[decoder.weight_type])
    writer.add_vocab_size(n_vocab)
    writer.add_context_length(decoder.n_ctx_train)
    writer.add_embedding_length(decoder.n_embd)
    writer.add_block_count(decoder.n_layer)
    writer.add_feed_forward_length(decoder.n_ff)
    layers = range(decoder.n_layer)
    if decoder.architecture == "mamba":
        writer.add_head_count(0)
    else:
        heads = [0 if decoder.is_mamba(layer) else decoder.n_head_kv for layer in layers]
        writer.add_head_count(decoder.n_head)
        writer.add_head_count_kv(heads if 0 in heads else decoder.n_head_kv)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    if decoder.architecture in ("mamba", "jamba"):
        shape = decoder.state_space
        writer.add_ssm_conv_kernel(shape.n_conv)
        writer.add_ssm_inner_size(2 * decoder.n_embd)
        writer.add_ssm_state_size(shape.n_state)
        writer.add_ssm_time_step_rank(shape.rank)
        return
    writer.add_rope_dimension_count(decoder.n_embd // decoder.n_head)
    writer.add_rope_freq_base(ROPE_BASE)
    if decoder.architecture == "qwen2vl":
        # For time, height and width, together half of a head's size.
        half = decoder.n_embd // decoder.n_head // 2
        writer.add_rope_dimension_sections([half // 4, half * 3 // 8, half * 3 // 8, 0])
    if decoder.architecture == "gemma3":
        head_size = decoder.n_embd // decoder.n_head
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)
        writer.add_sliding_window(decoder.window)
        writer.add_sliding_window_pattern([layer % 2 == 0 for layer in layers])


def add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    if vocabulary.pre is not None:
        writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges is not None:
        writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.merges])
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    for role, token_id in vocabulary.special_ids.items():
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token_id)
    writer.add_add_bos_token(vocabulary.add_bos)
    writer.add_add_eos_token(False)
