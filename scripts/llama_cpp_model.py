"""Runs a GGUF in llama.cpp (token ids in, logits out) through llama.cpp's C interface.

The library is llama-cpp-python's, compiled for this processor, if that package is installed, and otherwise the wheel xllamacpp.
"""

import ctypes
import importlib.metadata
import logging
from pathlib import Path

import numpy

import llama_cpp_library

try:
    import llama_cpp

    PACKAGE = "llama-cpp-python"
except ModuleNotFoundError:
    llama_cpp = llama_cpp_library.library()
    PACKAGE = "xllamacpp"

# f32 accumulation throughout: by default llama.cpp uses an f16 cache, and flash attention if available.
EXACT = {
    "type_k": llama_cpp_library.GGML_TYPE_F32,
    "type_v": llama_cpp_library.GGML_TYPE_F32,
    "flash_attn_type": llama_cpp_library.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}

logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)


class LlamaCppModel:
    """A model, an adapter if one is given, and a context of `n_rows` caches of `n_ctx` tokens each.

    `context` are fields of llama_context_params that override llama.cpp's defaults, such as `EXACT`.
    """

    def __init__(self, path: Path, adapter: Path = None, n_ctx: int = 2048, n_rows: int = 1, threads: int = 2, context: dict = {}):
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp does not load this model; its message is above")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = n_rows * n_ctx
        params.n_seq_max = n_rows
        params.n_threads = params.n_threads_batch = threads
        for name, value in context.items():
            setattr(params, name, value)
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"{path}: llama.cpp cannot create a context of {n_rows} times {n_ctx} tokens; its message is above")
        if adapter is not None:
            self.attach(adapter)
        self.batch = llama_cpp.llama_batch_init(n_rows * n_ctx, 0, 1)

    def attach(self, adapter: Path) -> None:
        loaded = llama_cpp.llama_adapter_lora_init(self.model, str(adapter).encode())
        if not loaded:
            raise SystemExit(f"{adapter}: llama.cpp does not load this adapter; its message is above")
        adapters = (ctypes.c_void_p * 1)(loaded)
        status = llama_cpp.llama_set_adapters_lora(self.context, adapters, 1, (ctypes.c_float * 1)(1.0))
        if status != 0:
            raise SystemExit(f"{adapter}: llama.cpp cannot apply this adapter (status {status})")

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def clear(self) -> None:
        """Clears all tokens."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def logits(self, tokens: list) -> numpy.ndarray:
        """Logits [requested, vocab] after the `tokens` that request them: (id, position, row, whether logits are requested).

        The next call overwrites them.
        """
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, row, asks) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, asks
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"llama.cpp could not decode {len(tokens)} tokens (status {status})")
        n_asked = sum(bool(asks) for *_, asks in tokens)
        return numpy.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (n_asked, self.n_vocab))

    def all_logits(self, ids: list) -> numpy.ndarray:
        """Logits [n, vocab] at every position of a prompt of `n` tokens."""
        self.clear()
        return self.logits([(int(token), position, 0, True) for position, token in enumerate(ids)]).copy()

    def ends(self, token: int) -> bool:
        return llama_cpp.llama_vocab_is_eog(self.vocab, token)

    def text(self, ids: list, special: bool = False) -> bytes:
        """The text of tokens, which may end within a character; `special` also writes control tokens."""
        ids = (ctypes.c_int32 * len(ids))(*map(int, ids))
        buffer = ctypes.create_string_buffer(64 * len(ids) + 64)
        n_bytes = llama_cpp.llama_detokenize(self.vocab, ids, len(ids), buffer, len(buffer), False, special)
        return buffer.raw[: max(n_bytes, 0)]

    def ids(self, text: bytes) -> list:
        """The tokens of a text, which may contain special tokens."""
        ids = (ctypes.c_int32 * (len(text) + 8))()
        n_ids = llama_cpp.llama_tokenize(self.vocab, text, len(text), ids, len(ids), False, True)
        return list(ids[: max(n_ids, 0)])


def versions() -> str:
    packages = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in (PACKAGE, "gguf", "numpy"))
    return f"{packages}; llama.cpp with {llama_cpp.llama_print_system_info().decode().strip(' |')}"
