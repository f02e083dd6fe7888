"""The C interface of llama.cpp, loaded from the wheel xllamacpp: the functions that scripts call.

The fields match the version in scripts/requirements-xllamacpp.txt. If another version adds a field, all later fields move, so
`library` checks the size of each structure and the defaults that llama.cpp fills in.
"""

import ctypes
import importlib.util
import platform
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_int8, c_size_t, c_uint32, c_void_p

# As in ggml.h and llama.h.
GGML_TYPE_F32 = 0
LLAMA_FLASH_ATTN_TYPE_DISABLED = 0


class ModelParams(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("devices", "tensor_buft_overrides")),
        *((name, c_int32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, c_void_p) for name in ("tensor_split", "progress_callback", "progress_callback_user_data", "kv_overrides")),
        *((name, c_bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts", "no_host", "no_alloc", "load_mtp")),
    ]


class ContextParams(ctypes.Structure):
    _fields_ = [
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq")),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type", "attention_type")),
        ("flash_attn_type", c_int32),
        *((name, c_float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor")),
        *((name, c_float) for name in ("yarn_beta_fast", "yarn_beta_slow")),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        *((name, c_void_p) for name in ("cb_eval", "cb_eval_user_data")),
        *((name, c_int32) for name in ("type_k", "type_v")),
        *((name, c_void_p) for name in ("abort_callback", "abort_callback_data")),
        # llama.h of llama-cpp-python 0.3.36 does not have this field yet.
        ("unnamed", c_void_p),
        *((name, c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


Log = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
# Return type and argument types.
FUNCTIONS = {
    "llama_log_set": (None, [Log, c_void_p]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_adapter_lora_init": (c_void_p, [c_void_p, c_char_p]),
    "llama_set_adapters_lora": (c_int32, [c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_float)]),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_free": (None, [c_void_p]),
    "llama_model_free": (None, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits": (POINTER(c_float), [c_void_p]),
    "llama_vocab_is_eog": (c_bool, [c_void_p, c_int32]),
    "llama_detokenize": (c_int32, [c_void_p, POINTER(c_int32), c_int32, c_char_p, c_int32, c_bool, c_bool]),
    "llama_tokenize": (c_int32, [c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool]),
    "llama_print_system_info": (c_char_p, []),
}
ADVICE = "compare scripts/llama_cpp_library.py with llama.h of the installed xllamacpp"
MODEL_DEFAULTS = {"main_gpu": 0, "vocab_only": False, "check_tensors": False, "use_extra_bufts": True, "no_alloc": False}
CONTEXT_DEFAULTS = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "rope_scaling_type": -1, "pooling_type": -1, "attention_type": -1,
    "flash_attn_type": -1, "rope_freq_base": 0.0, "yarn_ext_factor": -1.0, "type_k": 1, "type_v": 1, "embeddings": False,
    "offload_kqv": True, "n_samplers": 0, "ctx_other": None,
}  # fmt: skip


@Log
def log_errors(level: int, text: bytes, _) -> None:
    """Prints llama.cpp's errors; the other levels are notes on loading."""
    if level == 4:
        print(text.decode(errors="replace"), end="")


def check_size(library: ctypes.CDLL, name: str, structure: type) -> None:
    """Exits unless `name` fills in as many bytes as `structure` has."""
    buffer = ctypes.create_string_buffer(b"\xaa" * 512, 512)
    # A structure of this size is returned through a pointer that the caller passes (x86-64 and aarch64 differ in its register).
    call = ctypes.CFUNCTYPE(c_void_p, c_void_p)((name, library))
    if platform.machine() == "x86_64":
        call(ctypes.addressof(buffer))
        size = len(buffer.raw.rstrip(b"\xaa"))
        alignment = ctypes.alignment(structure)
        if -(-size // alignment) * alignment != ctypes.sizeof(structure):
            raise SystemExit(f"{name} fills in {size} bytes, expected {ctypes.sizeof(structure)}; {ADVICE}")


def library() -> ctypes.CDLL:
    """The shared library with its functions declared, or an exit that names the first size or default that is unexpected."""
    found = ctypes.CDLL(importlib.util.find_spec("xllamacpp.xllamacpp").origin)
    check_size(found, "llama_model_default_params", ModelParams)
    check_size(found, "llama_context_default_params", ContextParams)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    defaults = ((found.llama_model_default_params(), MODEL_DEFAULTS), (found.llama_context_default_params(), CONTEXT_DEFAULTS))
    for params, expected in defaults:
        for name, value in expected.items():
            if getattr(params, name) != value:
                raise SystemExit(f"llama.cpp's default of {name} is {getattr(params, name)}, expected {value}; {ADVICE}")
    found.llama_log_set(log_errors, None)
    return found
