"""Loads SmolLM2's GGUF as transformers objects: an f32 model and the tokenizer.

The weights are dequantised by transformers' own GGUF loader and compared, tensor by tensor, with a dequantisation by
the `gguf` package. The tokenizer is built from the file's token and merge lists with SmolLM's pre-tokenizer (single
digits, then GPT-2's byte level), because the generic conversion does not include the digit split.
"""

from pathlib import Path

import gguf
import numpy
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

DEFAULT_PATH = Path(__file__).resolve().parents[1] / "models" / "smollm2-135m-instruct.gguf"
CONTROL_TOKEN = 3

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def value(reader: gguf.GGUFReader, key: str):
    return reader.fields[key].contents()


def hf_name(name: str) -> str:
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"


def unpermuted(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """GGUF stores the rows of q and k as adjacent rotation pairs, transformers as two halves."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def dequantised(path: Path) -> dict:
    """transformers' tensor name -> f32 array, using only the `gguf` package."""
    reader = gguf.GGUFReader(path)
    heads = {
        "attn_q": value(reader, "llama.attention.head_count"),
        "attn_k": value(reader, "llama.attention.head_count_kv"),
    }
    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        tensors[hf_name(tensor.name)] = unpermuted(weight, heads[kind]) if kind in heads else weight
    return tensors


def load_model(path: Path = DEFAULT_PATH, attention: str = "eager", check: bool = True) -> LlamaForCausalLM:
    """An f32 model without quantisation metadata, so that it can be saved, wrapped by peft and trained."""
    path = Path(path).resolve()
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    state = loaded.state_dict()
    if check:
        for name, weight in dequantised(path).items():
            if not torch.equal(state[name], torch.from_numpy(numpy.ascontiguousarray(weight))):
                raise SystemExit(f"{path}: transformers and gguf dequantise {name} to different values")
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = ["LlamaForCausalLM"]
    model = LlamaForCausalLM._from_config(
        LlamaConfig(**config), attn_implementation=attention, dtype=torch.float32
    )
    model.load_state_dict(state)
    return model.eval()


# By the name in GGUF: the steps before the byte-level one.
PRE_TOKENIZERS = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}


def load_tokenizer(path: Path = DEFAULT_PATH) -> PreTrainedTokenizerFast:
    reader = gguf.GGUFReader(path)
    tokens = value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    name = value(reader, "tokenizer.ggml.pre")
    if name not in PRE_TOKENIZERS:
        raise SystemExit(f"{path}: expected tokenizer.ggml.pre to be one of {', '.join(PRE_TOKENIZERS)}, found {name!r}")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*PRE_TOKENIZERS[name], pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    types = value(reader, "tokenizer.ggml.token_type")
    special = [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == CONTROL_TOKEN]
    tokenizer.add_special_tokens(special)
    named = {
        f"{role}_token": tokens[value(reader, f"tokenizer.ggml.{key}_token_id")]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **named)
    fast.chat_template = value(reader, "tokenizer.chat_template")
    return fast
