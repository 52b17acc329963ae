"""The written checkpoint against the dense model, both in numpy.

A BF16 mixture must have the dense model's most likely token at every position of the ten questions
and their answers, its logits within 0.3 wherever a token of an answer is chosen, and its perplexity
within 0.5 %. MXFP4 changes the weights too much for that: such a mixture must agree in the same way
with the dense model that its own decoded weights stand for, and its perplexity is only measured.
"""

from dataclasses import dataclass

import numpy as np

from demo_model.cache import DemoError
from demo_model.forward import forward
from demo_model.models import CollapsedModel, MixtureModel
from demo_model.moe import SWIGLU_LIMIT
from demo_model.reference import logits_in_chunks, perplexity

MAX_LOGIT_DIFFERENCE = 0.3
MAX_PERPLEXITY_CHANGE = 0.005


@dataclass
class Comparison:
    """Differences over the logits of some positions: largest, rms, and how many argmax differ."""

    largest: float = 0.0
    square_sum: float = 0.0
    count: int = 0
    positions: int = 0
    other_argmax: int = 0

    @property
    def rms(self):
        return (self.square_sum / max(self.count, 1)) ** 0.5


def compare_logits(expected, found):
    """Each a pair of hidden states [T, H] and the unembedding [V, H] they belong to."""
    total = Comparison()
    for (_, a), (_, b) in zip(logits_in_chunks(*expected), logits_in_chunks(*found), strict=True):
        difference = np.abs(a - b)
        total.largest = max(total.largest, float(difference.max()))
        total.square_sum += float(np.square(difference, dtype=np.float64).sum())
        total.count += difference.size
        total.positions += len(a)
        total.other_argmax += int((a.argmax(-1) != b.argmax(-1)).sum())
    return total


def _at_answers(reference, hidden):
    """The states that choose the answers' tokens: of the last prompt position and all after it."""
    return np.concatenate(
        [h[len(a.prompt_ids) - 1 :] for a, h in zip(reference.answers, hidden, strict=True)]
    )


def verify(folder, form, dense, reference, progress):
    """Checks the checkpoint in `folder` and returns what was measured, for demo.json.

    dense is a DenseModel, progress takes 0..1. Raises DemoError where a limit is passed.
    """
    layers = dense.dims.layers
    mixture = MixtureModel(folder, dense.dims)
    hidden = forward(
        mixture, reference.sequences, on_layer=lambda n: progress(0.8 * (n + 1) / layers)
    )
    found, expected, unembedding = hidden[:-1], reference.hidden[:-1], dense.unembedding
    if form.mxfp4:
        collapsed = CollapsedModel(folder, dense.dims)
        expected, unembedding = forward(collapsed, reference.sequences[:-1]), collapsed.unembedding
    progress(0.9)
    everywhere, answers = (
        compare_logits((cut(expected), unembedding), (cut(found), mixture.unembedding))
        for cut in (np.concatenate, lambda states: _at_answers(reference, states))
    )
    value = perplexity(hidden[-1], mixture.unembedding, reference.text_ids)
    measured = {
        "compared_with": "dense model of the decoded weights" if form.mxfp4 else "dense model",
        "answer_positions": answers.positions,
        "answer_largest_logit_difference": round(answers.largest, 4),
        "positions": everywhere.positions,
        "largest_logit_difference": round(everywhere.largest, 4),
        "rms_logit_difference": round(everywhere.rms, 5),
        "other_argmax": everywhere.other_argmax,
        "share_of_first_copies": round(
            float(mixture.chosen[: form.slices].sum() / mixture.chosen.sum()), 4
        ),
        "largest_gate_or_up": round(mixture.largest_activation, 2),
        "perplexity": round(value, 5),
        "perplexity_change": round(value / reference.perplexity - 1, 5),
    }
    _check(form, measured)
    return measured


def _check(form, measured):
    faults = []

    def fault(name, allowed):
        faults.append(f"{name} is {measured[name]}, allowed {allowed}")

    if measured["answer_largest_logit_difference"] > MAX_LOGIT_DIFFERENCE:
        fault("answer_largest_logit_difference", MAX_LOGIT_DIFFERENCE)
    if measured["other_argmax"]:
        fault("other_argmax", 0)
    if not form.mxfp4 and abs(measured["perplexity_change"]) > MAX_PERPLEXITY_CHANGE:
        fault("perplexity_change", MAX_PERPLEXITY_CHANGE)
    if form.model_type == "gpt_oss" and measured["largest_gate_or_up"] >= SWIGLU_LIMIT:
        fault("largest_gate_or_up", f"less than swiglu_limit {SWIGLU_LIMIT}")
    if not 0.2 < measured["share_of_first_copies"] < 0.8:
        fault("share_of_first_copies", "0.2 to 0.8")
    if faults:
        raise DemoError(
            f"the {form.name} checkpoint does not compute the dense model: " + "; ".join(faults)
        )
