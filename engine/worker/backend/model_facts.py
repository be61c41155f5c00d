"""What llama.cpp knows of a model without its vocabulary."""

from typing import Any

from llama_cpp import llama_cpp as C


class ModelFacts:
    """A loaded model, its weights allocated or not."""

    _model: Any

    @property
    def n_ctx_train(self) -> int:
        return int(C.llama_model_n_ctx_train(self._model))

    @property
    def is_recurrent(self) -> bool:
        """True if layers keep a state of all tokens so far, from which none can be taken out."""
        model = self._model
        return bool(C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model))

    @property
    def n_swa(self) -> int:
        """The sliding window of attention, in tokens; 0 without one."""
        return int(C.llama_model_n_swa(self._model))

    @property
    def n_embd(self) -> int:
        return int(C.llama_model_n_embd(self._model))

    @property
    def n_embd_inp(self) -> int:
        """The size of an embedding that takes the place of a token."""
        return int(C.llama_model_n_embd_inp(self._model))

    @property
    def uses_mrope(self) -> bool:
        """True if the tokens of an image share positions, which have dimensions of their own."""
        kinds = (C.LLAMA_ROPE_TYPE_MROPE, C.LLAMA_ROPE_TYPE_IMROPE)
        return C.llama_model_rope_type(self._model) in kinds

    @property
    def n_layer(self) -> int:
        return int(C.llama_model_n_layer(self._model))

    @property
    def n_params(self) -> int:
        return int(C.llama_model_n_params(self._model))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(C.llama_model_size(self._model))

    @property
    def has_decoder(self) -> bool:
        return bool(C.llama_model_has_decoder(self._model))

    @property
    def has_encoder(self) -> bool:
        return bool(C.llama_model_has_encoder(self._model))

    @property
    def has_state(self) -> bool:
        """True if each sequence has a recurrent state, which takes memory of its own."""
        return bool(C.llama_model_is_recurrent(self._model) or C.llama_model_is_hybrid(self._model))
