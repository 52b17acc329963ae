"""SmolLM2-135M-Instruct as its GGUF file stores it -> dense float32 weights and the vocabulary.

    source = Source.open(path)
    source.dims.hidden                      # 576
    source.weight("blk.0.ffn_gate.weight")  # float32 [1536, 576], [out, in]

llama.cpp rotates neighbouring pairs of a head, Hugging Face checkpoints rotate element i with
element i + head_dim / 2; the GGUF converter permutes the rows of q and k for that, and
`attention_rows` puts them back.
"""

from dataclasses import dataclass

import gguf
import numpy as np
from gguf.quants import dequantize


@dataclass(frozen=True)
class Dims:
    """The shape of the dense model, named as in config.json."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    rms_eps: float


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE vocabulary: token texts by id, merges by rank, and the special ids."""

    tokens: list
    special_ids: list
    merges: list
    bos_id: int
    eos_id: int
    pad_id: int
    unknown_id: int
    chat_template: str


def unpermute_rope_rows(weight, heads):
    """Rows [heads x head_dim, in] from interleaved rope order back to half-split order."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


class Source:
    """The open file. Tensors are dequantised when asked for, none is kept."""

    def __init__(self, dims, vocabulary, tensors):
        self.dims = dims
        self.vocabulary = vocabulary
        self._tensors = tensors

    @classmethod
    def open(cls, path):
        reader = gguf.GGUFReader(path)
        fields = reader.fields
        return cls(
            _read_dims(fields), _read_vocabulary(fields), {t.name: t for t in reader.tensors}
        )

    def weight(self, name):
        """float32, matrices as [out, in]."""
        tensor = self._tensors[name]
        return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)

    def attention_rows(self, layer, which):
        """q, k, v or o of a layer, [out, in], rotary rows in half-split order."""
        name = f"blk.{layer}.attn_{'output' if which == 'o' else which}.weight"
        weight = self.weight(name)
        if which == "q":
            return unpermute_rope_rows(weight, self.dims.heads)
        if which == "k":
            return unpermute_rope_rows(weight, self.dims.kv_heads)
        return weight


def _value(fields, key):
    if key not in fields:
        raise ValueError(f"the GGUF file has no field {key}")
    return fields[key].contents()


def _read_dims(fields):
    def number(key):
        return _value(fields, "llama." + key)

    heads, hidden = number("attention.head_count"), number("embedding_length")
    return Dims(
        layers=number("block_count"),
        hidden=hidden,
        intermediate=number("feed_forward_length"),
        heads=heads,
        kv_heads=number("attention.head_count_kv"),
        head_dim=hidden // heads,
        vocab=number("vocab_size"),
        context=number("context_length"),
        rope_theta=number("rope.freq_base"),
        # Stored as float32 in the file: 9.999999747378752e-06 is meant to be 1e-05.
        rms_eps=float(f"{number('attention.layer_norm_rms_epsilon'):.6g}"),
    )


def _read_vocabulary(fields):
    def field(key):
        return _value(fields, "tokenizer." + key)

    control = int(gguf.TokenType.CONTROL)
    return Vocabulary(
        tokens=field("ggml.tokens"),
        special_ids=[i for i, kind in enumerate(field("ggml.token_type")) if kind == control],
        merges=[tuple(merge.split(" ")) for merge in field("ggml.merges")],
        bos_id=field("ggml.bos_token_id"),
        eos_id=field("ggml.eos_token_id"),
        pad_id=field("ggml.padding_token_id"),
        unknown_id=field("ggml.unknown_token_id"),
        chat_template=field("chat_template"),
    )
