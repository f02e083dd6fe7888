#!/usr/bin/env python3
"""Preprocesses rows with datasets and TRL's SFTTrainer: the other side of scripts/bench/preprocess.

The trainer has a tiny model, so nearly all of its time is preprocessing. Prints one JSON line: the number of examples,
and the peak RSS of this process and its children in total.
"""

import argparse
import json
import threading
import time
from pathlib import Path

import psutil
from datasets import load_dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer


class Watch(threading.Thread):
    """Peak memory of a process and its children; shared pages are counted once per process."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most = 0

    def run(self):
        own = psutil.Process()
        while True:
            total = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    pass
            self.most = max(self.most, total)
            time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--processes", type=int, required=True)
    arguments = parser.parse_args()
    watch = Watch()
    watch.start()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model.parent, gguf_file=arguments.model.name)
    rows = load_dataset("parquet", data_files=arguments.rows, split="train", cache_dir=arguments.cache)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1)
    settings = SFTConfig(
        output_dir=f"{arguments.cache}/run", max_length=2048, completion_only_loss=True, dataset_num_proc=arguments.processes,
        report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no",
    )
    trainer = SFTTrainer(model=LlamaForCausalLM(config), processing_class=tokenizer, train_dataset=rows, args=settings)
    print(json.dumps({"examples": len(trainer.train_dataset), "rss": watch.most, "columns": trainer.train_dataset.column_names}))
    return 0


if __name__ == "__main__":
    main()
