"""Compares greedy completions of llama.cpp with ours: the same, different after a tie, or different."""

from pathlib import Path

import numpy
from gguf import GGUFReader

from llama_cpp_model import LlamaCppModel

# Errors of the logits measured by scripts/verify/peft: up to 1.2e-4 for ours, and 1.4e-4 for another f32
# implementation with its own sums and exponentials. Their sum is below this bound.
BOUND = 3e-4
# For Gemma: llama.cpp uses a GELU table of 65,536 f16 values (ggml-cpu, `ggml_table_gelu_f16`), whatever dtype it
# computes in.
GELU_BOUND = 1e-2


def bound_of(model: Path) -> float:
    """Maximum difference between a logit of the GGUF file `model` and ours."""
    architecture = GGUFReader(model).get_field("general.architecture").contents()
    return GELU_BOUND if architecture.startswith("gemma") else BOUND


def greedy(model: LlamaCppModel, logits: numpy.ndarray, n_prompt: int, n_most: int) -> tuple:
    """(ids after the prompt that the model has just read, whether they ended by themselves, the margin of each best token).

    `logits` [vocab] are the logits after the prompt; a margin is the difference between the best and the second-best
    logit.
    """
    ids, leads = [], []
    while True:
        second, best = numpy.partition(logits, -2)[-2:]
        leads.append(float(best - second))
        token = int(logits.argmax())
        if model.ends(token) or len(ids) == n_most:
            return ids, model.ends(token), leads
        ids.append(token)
        logits = model.logits([(token, n_prompt + len(ids) - 1, 0, True)])[-1]


def same_text(model: LlamaCppModel, logits: numpy.ndarray, n_prompt: int, ours: dict, bound: float) -> tuple:
    """(comparison of llama.cpp's completion of the prompt it has just read with ours: "same", "tie" or "other"; its text)

    A tie is a token whose margin is below twice `bound`.
    """
    ids, ended, leads = greedy(model, logits, n_prompt, ours["n_tokens"] + (ours["finish_reason"] == "stop"))
    # A text that ends within a character has a replacement character, as ours has.
    text, wanted = model.text(ids).decode(errors="replace"), ours["text"]
    if text == wanted and ended >= (ours["finish_reason"] == "stop"):
        return "same", text
    # The first token that differs from our text, or the end of the shorter one.
    n_same = 0
    while n_same < len(ids) and wanted.encode().startswith(model.text(ids[: n_same + 1])):
        n_same += 1
    return ("tie" if leads[n_same] < 2 * bound else "other"), text
