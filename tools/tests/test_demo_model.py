"""Tests of the demo model's arithmetic and files on tiny random layers.

    python3 tools/tests/test_demo_model.py

Runs itself again in the tool's own environment (made on first use) where numpy or gguf is missing.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TOOLS)

if not all(importlib.util.find_spec(name) for name in ("numpy", "gguf", "tokenizers")):
    tool = [sys.executable, os.path.join(TOOLS, "make_demo_model.py"), "--env-only"]
    interpreter = subprocess.run(tool, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    os.execv(interpreter, [interpreter, *sys.argv])

import numpy as np
from tokenizers import Tokenizer

from demo_model import reference, text_files
from demo_model.checkpoint import write_model
from demo_model.forward import KvCache, attend, forward, rotate
from demo_model.models import CollapsedModel, DenseModel, MixtureModel
from demo_model.moe import FORMATS, router_rows
from demo_model.number_formats import E2M1, decode_mxfp4, encode_mxfp4, from_bf16, to_bf16
from demo_model.safetensors_file import SafetensorsReader, SafetensorsWriter, TensorSpec
from demo_model.source import Dims, Vocabulary, unpermute_rope_rows

DIMS = Dims(
    layers=2,
    hidden=64,
    intermediate=512,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=50,
    context=128,
    rope_theta=10000.0,
    rms_eps=1e-5,
)


IDS = np.arange(40) % DIMS.vocab


class TinySource:
    """A random dense model with the interface of Source; rows of q and k need no permutation."""

    dims = DIMS

    def __init__(self):
        random = np.random.default_rng(7)
        d = DIMS
        shapes = {"token_embd.weight": (d.vocab, d.hidden), "output_norm.weight": (d.hidden,)}
        for n in range(d.layers):
            shapes |= {
                f"blk.{n}.attn_norm.weight": (d.hidden,),
                f"blk.{n}.ffn_norm.weight": (d.hidden,),
                f"blk.{n}.attn_q.weight": (d.heads * d.head_dim, d.hidden),
                f"blk.{n}.attn_k.weight": (d.kv_heads * d.head_dim, d.hidden),
                f"blk.{n}.attn_v.weight": (d.kv_heads * d.head_dim, d.hidden),
                f"blk.{n}.attn_output.weight": (d.hidden, d.heads * d.head_dim),
                f"blk.{n}.ffn_gate.weight": (d.intermediate, d.hidden),
                f"blk.{n}.ffn_up.weight": (d.intermediate, d.hidden),
                f"blk.{n}.ffn_down.weight": (d.hidden, d.intermediate),
            }
        # Rounded to BF16 first, so that only factors that are no powers of two cost precision.
        self._weights = {
            name: from_bf16(to_bf16(random.standard_normal(shape) / np.sqrt(shape[-1])))
            for name, shape in shapes.items()
        }
        for name in self._weights:
            if name.endswith("norm.weight"):
                self._weights[name] = from_bf16(to_bf16(1 + self._weights[name]))

    def weight(self, name):
        return self._weights[name]

    def attention_rows(self, layer, which):
        return self.weight(f"blk.{layer}.attn_{'output' if which == 'o' else which}.weight")


def tiny_vocabulary():
    """Specials, the digits and letters, and one merge."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"0123456789abcde", "Ġ", "ab", "11"]
    return Vocabulary(
        tokens=tokens,
        special_ids=[0, 1, 2],
        merges=[("a", "b"), ("1", "1")],
        bos_id=1,
        eos_id=2,
        pad_id=2,
        unknown_id=0,
        chat_template="{{ messages }}",
    )


def write_tiny(folder, form):
    """A checkpoint of TinySource; returns the sha256 that the writer reports."""
    source = TinySource()
    source.vocabulary = tiny_vocabulary()
    for name, text in text_files.text_files(form, source).items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return write_model(os.path.join(folder, "model.safetensors"), source, form, lambda layer: None)


class NumberFormats(unittest.TestCase):
    def test_bf16_rounds_to_nearest_even(self):
        halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 0.0, 3.0], np.float32)
        expected = np.array([1.0, 1 + 2**-6, -1.0, 0.0, 3.0], np.float32)
        np.testing.assert_array_equal(from_bf16(to_bf16(halfway)), expected)

    def test_mxfp4_keeps_what_it_can_represent(self):
        # 6 in each block, so that the first scale tried is the exact one.
        values = np.tile(E2M1, 4).reshape(2, 32) * np.array([[2.0**-9], [2.0**5]], np.float32)
        np.testing.assert_array_equal(decode_mxfp4(*encode_mxfp4(values)), values)

    def test_mxfp4_low_nibble_is_the_first_value(self):
        row = np.zeros((1, 32), np.float32)
        row[0, 0], row[0, 1] = 6, -4
        blocks, scales = encode_mxfp4(row)
        self.assertEqual(blocks.shape, (1, 1, 16))
        self.assertEqual((blocks[0, 0, 0] & 15, blocks[0, 0, 0] >> 4, scales[0, 0]), (7, 14, 127))

    def test_mxfp4_rounds_ties_to_the_even_code(self):
        row = np.zeros((1, 32), np.float32)
        row[0, :9] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.75]
        # With 30 exact sixes no other scale pays.
        row[0, 9:] = 6
        decoded = decode_mxfp4(*encode_mxfp4(row))
        np.testing.assert_array_equal(decoded[0, :9], [6, 0, 1, 1, 2, 2, 4, 4, -1])

    def test_mxfp4_takes_the_best_of_three_scales(self):
        x = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
        blocks, scales = encode_mxfp4(x)
        found = np.square(decode_mxfp4(blocks, scales) - x).reshape(64, 3, 32).sum(-1)
        parts = x.reshape(64, 3, 32)
        largest = np.abs(parts).max(-1)
        for offset in (-1, 0, 1):
            scale = 2.0 ** (np.floor(np.log2(largest)) - 2 + offset)[..., None]
            nearest = E2M1[np.abs(parts[..., None] / scale[..., None] - E2M1).argmin(-1)] * scale
            self.assertTrue((found <= np.square(nearest - parts).sum(-1) * (1 + 1e-5)).all())

    def test_mxfp4_of_zeros_and_tiny_values_is_finite(self):
        x = np.zeros((2, 32), np.float32)
        x[1] = 1e-40
        blocks, scales = encode_mxfp4(x)
        self.assertTrue(np.isfinite(decode_mxfp4(blocks, scales)).all())
        self.assertTrue((scales < 255).all())

    def test_mxfp4_refuses_half_a_block(self):
        with self.assertRaisesRegex(ValueError, "multiple of 32"):
            encode_mxfp4(np.zeros((1, 48), np.float32))


class Rope(unittest.TestCase):
    def test_unpermuted_rows_give_the_same_attention_scores(self):
        heads, head_dim, hidden = 2, 8, 16
        random = np.random.default_rng(3)
        interleaved = random.standard_normal((heads * head_dim, hidden)).astype(np.float32)
        x = random.standard_normal((5, hidden)).astype(np.float32)
        positions = np.arange(5)
        angle = positions[:, None, None] * 100.0 ** (-np.arange(head_dim // 2) / (head_dim // 2))
        pairs = (x @ interleaved.T).reshape(5, heads, head_dim // 2, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        expected = np.stack(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1
        )
        expected = expected.reshape(5, heads, head_dim)
        rows = unpermute_rope_rows(interleaved, heads)
        found = rotate((x @ rows.T).reshape(5, heads, head_dim), positions, 100.0)
        for head in range(heads):
            np.testing.assert_allclose(
                found[:, head] @ found[:, head].T,
                expected[:, head] @ expected[:, head].T,
                atol=1e-4,
            )
        self.assertFalse(np.allclose(rows, interleaved))


class Forward(unittest.TestCase):
    def test_attention_equals_the_plain_formula_across_query_chunks(self):
        random = np.random.default_rng(5)
        tokens, heads, kv_heads, d = 300, 4, 2, 8
        q = random.standard_normal((tokens, heads, d)).astype(np.float32)
        k, v = (random.standard_normal((tokens, kv_heads, d)).astype(np.float32) for _ in range(2))
        sinks = np.array([0.5, -1.0, 2.0, -1e4], np.float32)
        found = attend(q, k, v, sinks).reshape(tokens, heads, d)
        for head in range(heads):
            scores = q[:, head].astype(np.float64) @ k[:, head // 2].T / np.sqrt(d)
            weights = np.exp(np.where(np.tri(tokens, dtype=bool), scores, -np.inf))
            weights /= weights.sum(-1, keepdims=True) + np.exp(np.float64(sinks[head]))
            np.testing.assert_allclose(found[:, head], weights @ v[:, head // 2], atol=1e-5)

    def test_kv_cache_continues_a_sequence(self):
        model = DenseModel(TinySource())
        ids = np.arange(20) % DIMS.vocab
        (whole,) = forward(model, [ids])
        caches = [KvCache(DIMS, 20)]
        parts = [forward(model, [ids[a:b]], caches)[0] for a, b in ((0, 7), (7, 8), (8, 20))]
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-4)

    def test_sequences_do_not_see_one_another(self):
        model = DenseModel(TinySource())
        a, b = np.array([1, 2, 3]), np.array([4, 5, 6, 7])
        together = forward(model, [a, b])
        for ids, found in zip((a, b), together, strict=True):
            np.testing.assert_allclose(found, forward(model, [ids])[0], atol=1e-4)


class Mixture(unittest.TestCase):
    def hidden(self, folder, form):
        write_tiny(folder, form)
        mixture = MixtureModel(folder, DIMS)
        return forward(mixture, [IDS])[0], mixture

    def test_bf16_mixtures_compute_the_dense_model(self):
        (dense,) = forward(DenseModel(TinySource()), [IDS])
        for name in ("mixtral-bf16", "gpt-oss-bf16"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                found, mixture = self.hidden(folder, FORMATS[name])
                self.assertLess(np.abs(found - dense).max(), 0.02 * np.abs(dense).max())
                self.assertTrue((mixture.chosen > 0).all(), mixture.chosen)

    def test_every_mixture_computes_its_collapsed_weights(self):
        for form in FORMATS.values():
            with self.subTest(form.name), tempfile.TemporaryDirectory() as folder:
                found, _ = self.hidden(folder, form)
                (collapsed,) = forward(CollapsedModel(folder, DIMS), [IDS])
                self.assertLess(np.abs(found - collapsed).max(), 0.01 * np.abs(collapsed).max())

    def test_router_chooses_one_copy_of_each_slice(self):
        rows = from_bf16(to_bf16(router_rows(4, 64, 3)))
        np.testing.assert_array_equal(rows[:4], -rows[4:])
        logits = np.random.default_rng(2).standard_normal((100, 64)).astype(np.float32) @ rows.T
        chosen = np.sort(np.argsort(-logits, -1)[:, :4] % 4, -1)
        self.assertTrue((chosen == np.arange(4)).all())

    def test_the_wrong_half_of_gate_up_is_noticed(self):
        """The check itself must fail on a checkpoint whose gate and up columns are swapped."""
        form = FORMATS["gpt-oss-bf16"]
        (dense,) = forward(DenseModel(TinySource()), [IDS])
        with tempfile.TemporaryDirectory() as folder:
            _, mixture = self.hidden(folder, form)
            read = mixture._expert_matrix
            mixture._expert_matrix = lambda name, e: (
                np.roll(read(name, e), 1, axis=1) if "gate_up" in name else read(name, e)
            )
            (found,) = forward(mixture, [IDS])
        self.assertGreater(np.abs(found - dense).max(), 0.1 * np.abs(dense).max())

    def test_layouts_are_those_of_the_published_checkpoints(self):
        expected = {
            "gpt-oss-bf16": {
                "mlp.experts.gate_up_proj": (8, 64, 256),
                "mlp.experts.gate_up_proj_bias": (8, 256),
                "mlp.experts.down_proj": (8, 128, 64),
                "mlp.experts.down_proj_bias": (8, 64),
                "mlp.router.weight": (8, 64),
                "mlp.router.bias": (8,),
                "self_attn.sinks": (4,),
                "self_attn.k_proj.bias": (32,),
            },
            "gpt-oss-mxfp4": {
                "mlp.experts.gate_up_proj_blocks": (8, 256, 2, 16),
                "mlp.experts.gate_up_proj_scales": (8, 256, 2),
                "mlp.experts.down_proj_blocks": (8, 64, 4, 16),
                "mlp.experts.down_proj_scales": (8, 64, 4),
            },
            "mixtral-bf16": {
                "block_sparse_moe.gate.weight": (16, 64),
                "block_sparse_moe.experts.15.w1.weight": (64, 64),
                "block_sparse_moe.experts.15.w2.weight": (64, 64),
                "self_attn.q_proj.weight": (64, 64),
            },
        }
        for name, shapes in expected.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                write_tiny(folder, FORMATS[name])
                tensors = SafetensorsReader(os.path.join(folder, "model.safetensors"))
                found = {n: tensors[f"model.layers.1.{n}"].shape for n in shapes}
                self.assertEqual(found, shapes)
                self.assertNotIn("lm_head.weight", tensors)


class Safetensors(unittest.TestCase):
    SPECS = (
        TensorSpec("b", "BF16", (2, 3)),
        TensorSpec("a", "U8", (5,)),
        TensorSpec("c", "F32", ()),
    )

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "x.safetensors")

    def test_round_trip_and_alignment(self):
        arrays = {
            "b": np.arange(6, dtype=np.uint16).reshape(2, 3),
            "a": np.arange(5, dtype=np.uint8),
            "c": np.array(2.5, np.float32),
        }
        with SafetensorsWriter(self.path, self.SPECS, {"format": "pt"}) as out:
            for name, array in arrays.items():
                out.write(name, array)
        tensors = SafetensorsReader(self.path)
        self.assertEqual(list(tensors), ["b", "a", "c"])
        self.assertEqual(tensors.metadata, {"format": "pt"})
        for name, array in arrays.items():
            np.testing.assert_array_equal(tensors[name], array)
        with open(self.path, "rb") as file:
            data = file.read()
        header = int.from_bytes(data[:8], "little")
        self.assertEqual((8 + header) % 64, 0)
        self.assertEqual(len(data), 8 + header + 12 + 5 + 4)
        offsets = [json.loads(data[8 : 8 + header])[n]["data_offsets"] for n in "bac"]
        self.assertEqual(offsets, [[0, 12], [12, 17], [17, 21]])

    def test_sum_is_that_of_the_file(self):
        with SafetensorsWriter(self.path, self.SPECS[1:2]) as out:
            out.write("a", np.zeros(5, np.uint8))
        with open(self.path, "rb") as file:
            self.assertEqual(out.sha256, hashlib.sha256(file.read()).hexdigest())

    def test_wrong_order_shape_or_type_is_refused(self):
        for name, array, message in (
            ("a", np.zeros(5, np.uint8), "out of order"),
            ("b", np.zeros((3, 2), np.uint16), "announced"),
            ("b", np.zeros((2, 3), np.float32), "announced"),
        ):
            with (
                self.subTest(message),
                self.assertRaisesRegex(ValueError, message),
                SafetensorsWriter(self.path, self.SPECS) as out,
            ):
                out.write(name, array)

    def test_missing_tensor_is_refused(self):
        with (
            self.assertRaisesRegex(ValueError, "never written"),
            SafetensorsWriter(self.path, self.SPECS),
        ):
            pass

    def test_truncated_file_is_refused(self):
        with SafetensorsWriter(self.path, self.SPECS[1:2]) as out:
            out.write("a", np.zeros(5, np.uint8))
        os.truncate(self.path, os.path.getsize(self.path) - 1)
        with self.assertRaisesRegex(ValueError, "tensor a"):
            SafetensorsReader(self.path)["a"]


class Text(unittest.TestCase):
    def test_digits_are_split_one_by_one_and_merges_apply(self):
        tokenizer = Tokenizer.from_str(text_files.tokenizer_json(tiny_vocabulary()))
        tokens = tokenizer.encode("ab11<|im_end|>c", add_special_tokens=False).tokens
        self.assertEqual(tokens, ["ab", "1", "1", "<|im_end|>", "c"])

    def test_config_names_what_the_engine_reads(self):
        form = FORMATS["gpt-oss-bf16"]
        config = json.loads(text_files.config_json(form, DIMS, tiny_vocabulary()))
        expected = {
            "model_type": "gpt_oss",
            "num_local_experts": 8,
            "num_experts_per_tok": 4,
            "intermediate_size": 128,
            "rope_scaling": None,
            "swiglu_limit": 1000.0,
            "layer_types": ["full_attention"] * 2,
            "tie_word_embeddings": True,
        }
        self.assertEqual({key: config[key] for key in expected}, expected)
        self.assertNotIn("quantization_config", config)
        quantised = json.loads(
            text_files.config_json(FORMATS["gpt-oss-mxfp4"], DIMS, tiny_vocabulary())
        )
        self.assertEqual(quantised["quantization_config"]["quant_method"], "mxfp4")

    def test_perplexity_of_a_uniform_model_is_the_vocabulary_size(self):
        hidden, unembedding = np.zeros((300, 4), np.float32), np.ones((50, 4), np.float32)
        self.assertAlmostEqual(
            reference.perplexity(hidden, unembedding, list(range(50)) * 6), 50.0, places=6
        )

    def test_perplexity_predicts_the_next_token(self):
        # State t puts all its weight on token t + 1.
        ids = list(range(10))
        hidden, unembedding = (
            np.roll(np.eye(10, dtype=np.float32), 1, axis=1) * 50,
            np.eye(10, dtype=np.float32),
        )
        self.assertAlmostEqual(reference.perplexity(hidden, unembedding, ids), 1.0, places=6)
        self.assertGreater(reference.perplexity(hidden, unembedding, ids[::-1]), 1e6)

    def test_greedy_answers_stop_at_eos_and_match_a_plain_loop(self):
        model = DenseModel(TinySource())
        prompts = [[1, 5, 9], [2, 3]]
        for eos in (-1, 11):
            for prompt, (tokens, margins, hidden) in zip(
                prompts, reference.answer_greedily(model, prompts, eos), strict=True
            ):
                ids = list(prompt)
                for token in tokens:
                    logits = forward(model, [np.array(ids)])[0][-1] @ model.unembedding.T
                    self.assertEqual(token, logits.argmax())
                    ids.append(token)
                self.assertEqual(len(hidden), len(ids) - 1)
                self.assertEqual(len(margins), len(tokens))
                self.assertTrue(len(tokens) == reference.ANSWER_TOKENS or tokens[-1] == eos)
                self.assertNotIn(eos, tokens[:-1])


if __name__ == "__main__":
    unittest.main()
