"""Greedy texts of llama.cpp beside ours: the same, another after a tie, or another."""

from pathlib import Path

import numpy
from gguf import GGUFReader

from llama_cpp_model import LlamaCppModel

# Ours was measured at up to 1.2e-4 from the exact function, and another f32 implementation, with sums and exponentials of its own,
# at 1.4e-4 (both by scripts/verify/peft): together less than this.
BOUND = 3e-4
# Of Gemma: llama.cpp looks GELU up in a table of 65,536 numbers in f16 (ggml-cpu, `ggml_table_gelu_f16`), whatever type it computes in.
GELU_BOUND = 1e-2


def bound_of(model: Path) -> float:
    """How far a logit of the GGUF file `model` may be from ours."""
    architecture = GGUFReader(model).get_field("general.architecture").contents()
    return GELU_BOUND if architecture.startswith("gemma") else BOUND


def greedy(model: LlamaCppModel, logits: numpy.ndarray, n_prompt: int, n_most: int) -> tuple:
    """(ids after the prompt that the model has just read, whether they ended by themselves, the lead of each best token).

    `logits` [vocab] are those after the prompt; a lead is that of a best logit over the second best.
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
    """(what llama.cpp's text after the prompt it has just read is beside ours: "same", "tie" or "other", its text)

    A tie is a token that leads by less than twice `bound`.
    """
    ids, ended, leads = greedy(model, logits, n_prompt, ours["n_tokens"] + (ours["finish_reason"] == "stop"))
    # A text that ends within a character has the sign for that, as ours has.
    text, wanted = model.text(ids).decode(errors="replace"), ours["text"]
    if text == wanted and ended >= (ours["finish_reason"] == "stop"):
        return "same", text
    # The first token that our text does not go on with, or the end of the shorter one.
    n_same = 0
    while n_same < len(ids) and wanted.encode().startswith(model.text(ids[: n_same + 1])):
        n_same += 1
    return ("tie" if leads[n_same] < 2 * bound else "other"), text
