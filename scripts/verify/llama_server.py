#!/usr/bin/env python3
"""Runs llama.cpp's own server from the wheel xllamacpp until standard input is closed.

The options are a subset of `llama-server`'s. The cache is in f32, without flash attention, as with `llama-server --cache-type-k f32
--cache-type-v f32 --flash-attn off`.
"""

import argparse
import sys

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--lora", required=True, help="adapter in GGUF")
    parser.add_argument("--jinja", action="store_true", help="render chats with the template's own Jinja")
    parser.add_argument("--chat-template-file", help="Jinja file that replaces the model's own template")
    parser.add_argument("--alias", required=True, help="the model's name for clients")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, default=4096, help="maximum number of tokens of a request (4096)")
    parser.add_argument("--parallel", type=int, default=2, help="concurrent requests (2)")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.model_alias = {arguments.alias}
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(arguments.lora, 1.0)]
    params.port = arguments.port
    params.use_jinja = arguments.jinja
    if arguments.chat_template_file:
        with open(arguments.chat_template_file, encoding="utf-8") as file:
            params.chat_template = file.read()
    params.n_parallel = arguments.parallel
    params.n_ctx = arguments.context * arguments.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    print(f"listening at {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
