"""What the dense model says: ten questions answered greedily, and a text's perplexity.

Perplexity of a text: its ids as one sequence without a BOS token; the mean negative log likelihood
(natural logarithm, softmax in float64) of the tokens 1 .. n - 1, each given all before it; exp of
that mean.
"""

from dataclasses import dataclass

import numpy as np

from demo_model.forward import KvCache, forward

QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Japan?",
    "What is the capital of England?",
    "What is the largest ocean on Earth?",
    "What is the currency of Japan?",
    "What is the chemical symbol for water?",
    "What is the chemical formula for table salt?",
    "Name the three primary colors.",
    "What is the opposite of hot?",
    "What is gravity?",
)
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
ANSWER_TOKENS = 24
# The text file of the perplexity holds exactly this many tokens.
TEXT_TOKENS = 2000
LOGIT_CHUNK = 128


@dataclass(frozen=True)
class Answer:
    """A greedy answer, up to EOS or ANSWER_TOKENS; margins are top1 - top2 logit of each token."""

    question: str
    prompt_ids: list
    tokens: list
    margins: list


@dataclass(frozen=True)
class Reference:
    """hidden: a [T, H] for each answer (prompt and all tokens but the last), then the text's."""

    answers: list
    text_ids: list
    hidden: list
    perplexity: float

    @property
    def sequences(self):
        """The ids that `hidden` belongs to."""
        return [a.prompt_ids + a.tokens[:-1] for a in self.answers] + [self.text_ids]


def chat_prompt(question):
    """The model's chat template with its default system message."""
    turns = (("system", SYSTEM), ("user", question))
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return text + "<|im_start|>assistant\n"


def logits_in_chunks(hidden, unembedding):
    """Yields (first position, logits [n, V]); for all positions of the text they take 400 MB."""
    for begin in range(0, len(hidden), LOGIT_CHUNK):
        yield begin, hidden[begin : begin + LOGIT_CHUNK] @ unembedding.T


def perplexity(hidden, unembedding, ids):
    """As defined at the head of this file; hidden [T, H] of the T ids."""
    total = 0.0
    for begin, logits in logits_in_chunks(hidden[:-1], unembedding):
        target = np.asarray(ids[begin + 1 : begin + 1 + len(logits)])
        top = logits.max(-1, keepdims=True)
        log_sum = np.log(np.exp(logits - top).sum(-1, dtype=np.float64)) + top[:, 0]
        total += float((log_sum - logits[np.arange(len(target)), target]).sum())
    return float(np.exp(total / (len(ids) - 1)))


def top_two(logits):
    """The most likely token and how far it leads, for each row: [T], [T]."""
    two = np.partition(logits, -2, -1)[:, -2:]
    return logits.argmax(-1), two[:, 1] - two[:, 0]


def answer_greedily(model, prompts, eos_id, on_step=lambda fraction: None):
    """(tokens, margins, hidden [T, H]) for each prompt; all prompts step together."""
    caches = [KvCache(model.dims, len(ids) + ANSWER_TOKENS) for ids in prompts]
    tokens, margins = [[] for _ in prompts], [[] for _ in prompts]
    hidden = [[h] for h in forward(model, prompts, caches)]
    live = list(range(len(prompts)))
    for step in range(ANSWER_TOKENS):
        best, lead = top_two(np.stack([hidden[i][-1][-1] for i in live]) @ model.unembedding.T)
        for i, token, margin in zip(live, best.tolist(), lead.tolist(), strict=True):
            tokens[i].append(token)
            margins[i].append(round(margin, 4))
        live = [i for i in live if tokens[i][-1] != eos_id]
        on_step((step + 1) / ANSWER_TOKENS)
        if not live or step + 1 == ANSWER_TOKENS:
            break
        states = forward(model, [np.array(tokens[i][-1:]) for i in live], [caches[i] for i in live])
        for i, state in zip(live, states, strict=True):
            hidden[i].append(state)
    return [(t, m, np.concatenate(h)) for t, m, h in zip(tokens, margins, hidden, strict=True)]


def make_reference(model, encode, eos_id, text, progress):
    """Runs the dense model. encode(text) gives ids with special tokens; progress(fraction)."""
    text_ids = encode(text)
    if len(text_ids) != TEXT_TOKENS:
        raise ValueError(f"the text has {len(text_ids)} tokens, expected {TEXT_TOKENS}")
    prompts = [encode(chat_prompt(question)) for question in QUESTIONS]
    replies = answer_greedily(model, prompts, eos_id, lambda f: progress(0.4 * f))
    (text_hidden,) = forward(
        model, [text_ids], on_layer=lambda n: progress(0.4 + 0.5 * (n + 1) / model.dims.layers)
    )
    answers = [
        Answer(q, p, t, m) for q, p, (t, m, _) in zip(QUESTIONS, prompts, replies, strict=True)
    ]
    value = perplexity(text_hidden, model.unembedding, text_ids)
    return Reference(answers, text_ids, [h for _, _, h in replies] + [text_hidden], value)
