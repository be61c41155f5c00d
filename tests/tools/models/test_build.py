"""The shipped model and its siblings: their builder, tokenizers, template and output."""

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
import pytest
from gguf import GGUFReader, TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as llama
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from specllama.engine.shipped import MODEL_NAME, model_path
from specllama.engine.worker.backend import initialize
from tools.models import hostile, tokenizer
from tools.models.build import build, ensure
from tools.models.recipes import CHAT_TEMPLATE, RECIPES, TALKER

pytestmark = pytest.mark.slow

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces, a tab\tand\n\n\n  three lines \n",
    "def f(x):\n    return {'a': x ** 2, \"b\": [1, 22, 333]}  # comment\n",
    "It's they're I'LL we'd don't '' 'x",
    "Größe, naïve, Ελληνικά, русский, עברית, العربية",
    "日本語の文章。中文 한국어",
    "emoji 👩‍👩‍👧 🇩🇪 and combining e\u0301 a\u0308",
    "0123456789 3.14 ²³ ½ Ⅷ",
    "a" * 1000 + " " * 1000 + "=" * 1000,
    "\r\n\r\n \r\n\x00\x01\x7f\x85\xa0",
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n",
]


class Model:
    """A model of the C API, or with `vocab_only` its vocabulary alone."""

    def __init__(self, path: Path, *, vocab_only: bool = False) -> None:
        initialize()
        params = llama.llama_model_default_params()
        params.vocab_only = vocab_only
        self.model = llama.llama_model_load_from_file(str(path).encode(), params)
        assert self.model is not None
        self.vocab = llama.llama_model_get_vocab(self.model)

    def tokenize(self, text: str, *, special: bool = True, add: bool = False) -> list[int]:
        data = text.encode()
        tokens = (llama.llama_token * (len(data) + 8))()
        n = llama.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), add, special)
        assert n >= 0
        return list(tokens[:n])

    def detokenize(self, tokens: list[int]) -> bytes:
        array = (llama.llama_token * len(tokens))(*tokens)
        buffer = ctypes.create_string_buffer(32 * len(tokens) + 1)
        n = llama.llama_detokenize(self.vocab, array, len(tokens), buffer, len(buffer), False, True)
        assert n >= 0
        return buffer.raw[:n]

    def is_end(self, token: int) -> bool:
        return bool(llama.llama_vocab_is_eog(self.vocab, token))

    def text_of(self, token: int) -> str:
        text: bytes = llama.llama_vocab_get_text(self.vocab, token)
        return text.decode()

    def generate(self, prompt: str, n: int, *, temperature: float, seed: int) -> list[int]:
        """At most `n` tokens; the last one may end the generation."""
        with self._context() as context, _sampler(temperature, seed) as sampler:
            tokens = self.tokenize(prompt)
            array = (llama.llama_token * len(tokens))(*tokens)
            output: list[int] = []
            while len(output) < n and not (output and self.is_end(output[-1])):
                assert (
                    llama.llama_decode(context, llama.llama_batch_get_one(array, len(array))) == 0
                )
                output.append(llama.llama_sampler_sample(sampler, context, -1))
                array = (llama.llama_token * 1)(output[-1])
            return output

    @contextmanager
    def _context(self) -> Iterator[Any]:
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 1024, 1, 1
        context = llama.llama_init_from_model(self.model, params)
        assert context is not None
        yield context
        llama.llama_free(context)

    def free(self) -> None:
        llama.llama_model_free(self.model)


@contextmanager
def _sampler(temperature: float, seed: int) -> Iterator[Any]:
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    if temperature > 0:
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_k(40))
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_p(0.95, 1))
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_min_p(0.05, 1))
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_temp(temperature))
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_dist(seed))
    else:
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_greedy())
    yield chain
    llama.llama_sampler_free(chain)


VOCABULARIES = {MODEL_NAME: TALKER.vocabulary, "random": tokenizer.chat_vocabulary}


@pytest.fixture(scope="module", params=VOCABULARIES)
def chat_name(request: pytest.FixtureRequest) -> str:
    """The models with the chat template."""
    return str(request.param)


@pytest.fixture(scope="module")
def chat_model(chat_name: str) -> Iterator[Model]:
    model = Model(model_path() if chat_name == MODEL_NAME else ensure(chat_name))
    yield model
    model.free()


@pytest.fixture(scope="module")
def random_model() -> Iterator[Model]:
    model = Model(ensure("random"))
    yield model
    model.free()


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(ensure("tiny-spm", tmp_path_factory.mktemp("models")), vocab_only=True)
    yield model
    model.free()


# ---- the builder ---------------------------------------------------------------------------


def contents(path: Path) -> tuple[dict[str, Any], dict[str, tuple[Any, bytes]]]:
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {t.name: (t.tensor_type, t.data.tobytes()) for t in reader.tensors}


def test_the_shipped_file_is_of_the_recipe() -> None:
    fields, tensors = contents(model_path())
    decoder = TALKER.decoder
    assert fields["tokenizer.ggml.tokens"] == TALKER.vocabulary().tokens
    assert fields["llama.embedding_length"] == decoder.n_embd
    assert fields["llama.block_count"] == decoder.n_layer
    assert fields["llama.context_length"] == decoder.n_ctx_train
    assert len({name for name in tensors if name.startswith("blk.")}) == 9 * decoder.n_layer


@pytest.mark.parametrize("name", ["random", "tiny-spm", "tiny-nochat", "tiny-mmproj-both"])
def test_building_twice_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    first, second = build(name, tmp_path / "a"), build(name, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name]


def test_the_shipped_file_is_small() -> None:
    assert model_path().stat().st_size < 6_000_000


def test_ensure_builds_once(tmp_path: Path) -> None:
    path = ensure("tiny-spm", tmp_path)
    written = path.stat().st_mtime_ns
    assert ensure("tiny-spm", tmp_path) == path
    assert path.stat().st_mtime_ns == written


def test_an_unknown_name_is_a_key_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        build("no-such-model", tmp_path)


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert "tokenizer.chat_template" not in contents(build("tiny-nochat", tmp_path))[0]
    assert contents(model_path())[0]["tokenizer.chat_template"] == CHAT_TEMPLATE.read_text("utf-8")


def test_a_projector_has_eyes_and_ears(tmp_path: Path) -> None:
    path = build("tiny-mmproj-both", tmp_path)
    fields, tensors = contents(path)
    assert fields["general.architecture"] == "clip"
    assert fields["clip.has_vision_encoder"]
    assert fields["clip.has_audio_encoder"]
    assert {name.split(".")[0] for name in tensors} == {"v", "a", "mm"}
    assert path.stat().st_size < 1_000_000


def test_an_extended_vocabulary_has_the_size_and_only_merges_that_can_happen() -> None:
    size = 12_000
    vocabulary = tokenizer.extended_vocabulary(size, seed=1)
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) == len(vocabulary.types) == size
    assert vocabulary.merges is not None
    assert vocabulary.merges[: len(tokenizer.load_merges())] == tokenizer.load_merges()
    known = set(tokenizer.byte_alphabet().values())
    for left, right in vocabulary.merges:
        assert left in known
        assert right in known
        known.add(left + right)
    assert vocabulary == tokenizer.extended_vocabulary(size, seed=1)


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    paths = hostile.write_hostile_files(tmp_path, model_path())
    params = llama.llama_model_default_params()
    loaded = {
        kind: llama.llama_model_load_from_file(str(path).encode(), params)
        for kind, path in paths.items()
    }
    assert loaded == dict.fromkeys(paths)


# ---- the tokenizers ------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(text=st.text(), special=st.booleans())
def test_tokens_give_the_text_back(chat_model: Model, text: str, special: bool) -> None:
    assert chat_model.detokenize(chat_model.tokenize(text, special=special)) == text.encode()


@pytest.mark.parametrize("text", TEXTS)
def test_sample_texts_survive(chat_model: Model, text: str) -> None:
    assert chat_model.detokenize(chat_model.tokenize(text)) == text.encode()


@pytest.mark.parametrize("text", ["a", " ", "a ", "é", "\n", "1", "#"])
def test_long_repetitive_input(chat_model: Model, text: str) -> None:
    data = text * (200_000 // len(text))
    assert chat_model.detokenize(chat_model.tokenize(data)) == data.encode()


def test_special_tokens_are_one_token_each(chat_model: Model) -> None:
    for text, kind in tokenizer.SPECIAL_TOKENS.items():
        (token,) = chat_model.tokenize(text)
        assert chat_model.text_of(token) == text
        is_text = kind is TokenType.USER_DEFINED
        assert bool(llama.llama_vocab_is_control(chat_model.vocab, token)) is not is_text
        # Only tokens that are texts by nature stay one token if special tokens are not parsed.
        assert (chat_model.tokenize(text, special=False) == [token]) is is_text


def test_the_roles_of_special_tokens(chat_model: Model) -> None:
    vocab = chat_model.vocab
    roles = [
        (llama.llama_vocab_bos, "<|endoftext|>"),
        (llama.llama_vocab_eos, "<|im_end|>"),
        (llama.llama_vocab_eot, "<|im_end|>"),
        (llama.llama_vocab_pad, "<|endoftext|>"),
        (llama.llama_vocab_fim_pre, "<|fim_prefix|>"),
        (llama.llama_vocab_fim_suf, "<|fim_suffix|>"),
        (llama.llama_vocab_fim_mid, "<|fim_middle|>"),
        (llama.llama_vocab_fim_pad, "<|fim_pad|>"),
        (llama.llama_vocab_fim_rep, "<|repo_name|>"),
        (llama.llama_vocab_fim_sep, "<|file_sep|>"),
    ]
    found = [chat_model.text_of(token_of(vocab)) for token_of, _ in roles]
    assert found == [text for _, text in roles]
    assert not llama.llama_vocab_get_add_bos(vocab)
    assert not llama.llama_vocab_get_add_eos(vocab)
    ends = {
        text for text in tokenizer.SPECIAL_TOKENS if chat_model.is_end(*chat_model.tokenize(text))
    }
    assert ends == {"<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}


@pytest.fixture(scope="module")
def reference(chat_name: str) -> Tokenizer:
    """The same vocabulary in another implementation."""
    vocabulary = VOCABULARIES[chat_name]()
    ids = {token: id for id, token in enumerate(vocabulary.tokens)}
    other = Tokenizer(models.BPE(vocab=ids, merges=vocabulary.merges))
    other.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(tokenizer.SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    other.decoder = decoders.ByteLevel()
    other.add_special_tokens(
        [AddedToken(token, normalized=False) for token in tokenizer.SPECIAL_TOKENS]
    )
    return other


@pytest.mark.parametrize("text", TEXTS)
def test_another_implementation_gives_the_same_ids(
    chat_model: Model, reference: Tokenizer, text: str
) -> None:
    assert chat_model.tokenize(text) == reference.encode(text).ids


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(codec="latin-1") | st.sampled_from("абв日本語👍 \n\t'")))
def test_another_implementation_agrees_on_random_text(
    chat_model: Model, reference: Tokenizer, text: str
) -> None:
    assert chat_model.tokenize(text) == reference.encode(text).ids


def test_english_takes_fewer_tokens_than_bytes(chat_model: Model) -> None:
    text = "The user of this server wants the name and the number of the words in a list."
    assert len(chat_model.tokenize(text)) < len(text) / 2


def test_sentencepiece_adds_a_beginning_and_falls_back_to_bytes(sentencepiece: Model) -> None:
    model = sentencepiece
    assert llama.llama_vocab_get_add_bos(model.vocab)
    (bos, *rest) = model.tokenize("Hello, 日本", add=True)
    assert model.text_of(bos) == "<s>"
    assert bos not in rest
    assert "<0xE6>" in [model.text_of(token) for token in rest]
    assert model.detokenize(rest) == "Hello, 日本".encode()


@settings(max_examples=100, deadline=None)
@given(text=st.text())
def test_sentencepiece_tokens_give_the_text_back(sentencepiece: Model, text: str) -> None:
    tokens = sentencepiece.tokenize(text, special=False)
    assert sentencepiece.detokenize(tokens) == text.encode()


# ---- the output ----------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_output_is_varied_text(random_model: Model, temperature: float) -> None:
    tokens = random_model.generate("Once upon a time", 200, temperature=temperature, seed=1)
    assert len(set(tokens)) > len(tokens) / 2
    text = random_model.detokenize(tokens).decode("utf-8")  # raises if it isn't whole characters
    assert all(character.isprintable() or character in "\t\n" for character in text)


def test_generations_end_by_themselves_but_not_soon(random_model: Model) -> None:
    runs = [random_model.generate("Hello", 900, temperature=0.8, seed=seed) for seed in range(24)]
    assert sum(len(run) >= 100 for run in runs) > len(runs) * 2 / 3
    ended = [run for run in runs if random_model.is_end(run[-1])]
    assert ended
    assert {random_model.text_of(run[-1]) for run in ended} <= {"<|im_end|>", "<|endoftext|>"}


def test_the_same_seed_gives_the_same_tokens_and_another_one_others(random_model: Model) -> None:
    first, again, other = (
        random_model.generate("Hello", 40, temperature=0.8, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


# ---- the chat template ---------------------------------------------------------------------

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Weather in Rome?"}
CALL = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "I should look.",
    "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
        {"type": "function", "function": {"name": "time", "arguments": '{"zone":1}'}},
    ],
}
RESULTS = [{"role": "tool", "content": "sunny"}, {"role": "tool", "content": "noon"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "time", "description": 'Tell "now"'}}


def render(messages: list[dict[str, Any]], **variables: Any) -> str:
    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string(CHAT_TEMPLATE.read_text("utf-8"))
    return template.render(messages=messages, **variables)


def test_template_of_a_plain_conversation() -> None:
    assert render([SYSTEM, USER], add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWeather in Rome?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render([USER]) == "<|im_start|>user\nWeather in Rome?<|im_end|>\n"
    assert render([]) == ""


def test_template_joins_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render([{"role": "user", "content": parts}]) == "<|im_start|>user\nab<|im_end|>\n"
    assert render([{"role": "assistant", "content": None}]) == "<|im_start|>assistant\n<|im_end|>\n"


def test_template_of_tools_with_and_without_a_system_message() -> None:
    for messages, opening in (([SYSTEM, USER], "Be brief.\n\n# Tools"), ([USER], "# Tools")):
        text = render(messages, tools=[TOOL, CLOCK])
        assert text.startswith(f"<|im_start|>system\n{opening}")
        listed = '#1 weather {"type": "object"}\n#2 time "Tell \\"now\\""'
        assert f"<tools>\n{listed}\n</tools>" in text
        assert text.count("<|im_start|>system") == 1
        assert text.endswith("<|im_start|>user\nWeather in Rome?<|im_end|>\n")


def test_template_of_calls_and_their_results() -> None:
    assert render([USER, CALL, *RESULTS]) == (
        "<|im_start|>user\nWeather in Rome?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nI should look.\n</think>\n\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {"zone":1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>"
        "\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
    )


def test_template_drops_the_thoughts_of_earlier_turns() -> None:
    inline = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."}
    for message, answer in ((CALL, "<tool_call>"), (inline, "Yes.")):
        text = render([USER, message, USER])
        assert "<think>" not in text
        assert "look" not in text
        assert "Hm." not in text
        assert f"<|im_start|>assistant\n{answer}" in text
    assert "<think>\nHm.\n</think>\n\nYes." in render([USER, inline])


def test_template_switches_thinking_off() -> None:
    for enabled, ending in ((True, ""), (False, "<think>\n\n</think>\n\n")):
        text = render([USER], add_generation_prompt=True, enable_thinking=enabled)
        assert text.endswith(f"<|im_start|>assistant\n{ending}")


def test_template_refuses_an_unknown_role() -> None:
    with pytest.raises(jinja2.TemplateError, match="No such role: oracle"):
        render([{"role": "oracle", "content": "?"}])


def test_every_recipe_has_a_description() -> None:
    assert all(recipe.description and recipe.file_name for recipe in RECIPES.values())
    assert len({recipe.file_name for recipe in RECIPES.values()}) == len(RECIPES)
