#!/usr/bin/env python3
"""The speed of a LoRA training step with transformers and peft on random weights: the other side of the example random_step.
With --quantization nf4 it is a step of QLoRA, with bitsandbytes.

The model is created from the shape only; nothing is downloaded. All known optimisations are enabled: SDPA without a
mask, so that its flash kernels run; frozen base weights without gradients; fused AdamW; and, in bf16, bf16 base weights
with f32 adapters under autocast. All tokens of all documents are supervised, as on the other side; each document is a
row of the batch.

Prints one line of JSON: seconds of the timed steps, tokens per second by their median, losses of all steps, peak memory.
"""

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from peft.helpers import disable_input_dtype_casting
from transformers import AutoConfig, AutoModelForCausalLM

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def random_model(arguments):
    """Created on the target device in the target dtype: an 8B model in f32 on the host would take minutes and 32 GB."""
    fields = json.loads(arguments.shape.read_text())
    config = AutoConfig.for_model(**fields)
    config.use_cache = False
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    if arguments.quantization == "nf4":
        model = quantised_model(config, dtype, arguments.device)
    else:
        with torch.device(arguments.device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    lora = LoraConfig(
        r=arguments.rank,
        lora_alpha=2 * arguments.rank,
        lora_dropout=arguments.dropout,
        target_modules=TARGETS,
        bias="none",
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, lora)
    if arguments.recompute:
        if arguments.quantization == "nf4":
            # As peft's prepare_model_for_kbit_training does.
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def quantised_model(config, dtype, device: str):
    """All linear layers but the head are in NF4 with double quantisation. They are created one at a time: a 70B model
    in bf16 does not fit on the device."""
    from accelerate import init_empty_weights
    from bitsandbytes.nn import Linear4bit, Params4bit

    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")

    def random(parameter):
        return torch.randn(parameter.shape, dtype=dtype, device=device) * 0.02

    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        layer = Linear4bit(
            module.in_features, module.out_features, module.bias is not None, dtype, compress_statistics=True,
            quant_type="nf4", device="meta",
        )
        layer.weight = Params4bit(random(module.weight), requires_grad=False, compress_statistics=True, quant_type="nf4", module=layer)
        if module.bias is not None:
            layer.bias = torch.nn.Parameter(torch.zeros_like(module.bias, device=device), requires_grad=False)
        model.set_submodule(name, layer.to(device))
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                value = torch.ones_like(parameter, device=device) if parameter.ndim == 1 else random(parameter)
                setattr(module, name, torch.nn.Parameter(value, requires_grad=False))
    model.tie_weights()
    return model.to(device)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def train(arguments, model) -> tuple:
    """Seconds of the timed steps and the losses of all steps, always on the same batch."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)
    decoder, head = model.base_model.model.model, model.base_model.model.lm_head
    vocab_size = model.base_model.model.config.vocab_size
    ids = torch.randint(vocab_size, (arguments.documents, arguments.length), device=arguments.device)
    in_bf16 = arguments.dtype == "bf16"
    kind = torch.device(arguments.device).type
    seconds, losses = [], []
    for step in range(arguments.warmup + arguments.steps):
        synchronize(arguments.device)
        started = time.perf_counter()
        with torch.autocast(kind, torch.bfloat16, enabled=in_bf16), disable_input_dtype_casting(model, active=in_bf16):
            hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
            logits = head(hidden[:, :-1]).flatten(0, 1)
            loss = F.cross_entropy(logits.float(), ids[:, 1:].flatten())
        # Recomputed blocks must cast as their forward pass did.
        with disable_input_dtype_casting(model, active=in_bf16):
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        synchronize(arguments.device)
        if step >= arguments.warmup:
            seconds.append(time.perf_counter() - started)
    return seconds, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=Path, required=True, help="a config.json; only the shape is read")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:INDEX")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16", help="dtype of the frozen weights and of the products")
    parser.add_argument("--quantization", choices=["none", "nf4"], default="none", help="how the frozen linear layers are stored")
    parser.add_argument("--documents", type=int, default=2, help="rows of the batch")
    parser.add_argument("--length", type=int, default=4096, help="tokens per document")
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters; alpha is twice the rank")
    parser.add_argument("--dropout", type=float, default=0.05, help="dropout of the adapters")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing: keep only the inputs of layers")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps at the start")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    torch.manual_seed(arguments.seed)
    model = random_model(arguments)
    seconds, losses = train(arguments, model)
    tokens = arguments.documents * arguments.length
    on_gpu = arguments.device.startswith("cuda")
    blocks = model.base_model.model.config.num_hidden_layers
    record = {
        "side": "peft",
        "shape": arguments.shape.stem,
        "device": arguments.device,
        "dtype": arguments.dtype,
        "quantization": arguments.quantization,
        "tokens": tokens,
        "documents": arguments.documents,
        # Tied weights are counted once; two values in 4 bits are one element.
        "parameters": sum(p.numel() * (2 if p.dtype == torch.uint8 else 1) for p in model.parameters() if not p.requires_grad),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "dropout": arguments.dropout,
        "kept_blocks": 0 if arguments.recompute else blocks,
        "blocks": blocks,
        "seconds": seconds,
        "tokens_per_second": tokens / statistics.median(seconds),
        "losses": losses,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
