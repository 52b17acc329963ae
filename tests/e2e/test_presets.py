"""Every published layout at its real widths, cut to a few layers, with random weights: it starts, generates, takes the
memory that rota plan says, and gives the same bits however its widths are padded."""
import json
import os
import pathlib
import re
import tempfile
import unittest

import harness
import numpy as np
from safetensors.numpy import load_file

DATA = harness.ROOT / "tests/data"
GPT_OSS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "num_local_experts": 4,
           "vocab_size": 512}
MIXTRAL = {"num_hidden_layers": 1, "num_local_experts": 2, "vocab_size": 512}
QWEN3 = {"num_hidden_layers": 2, "num_experts": 9, "vocab_size": 512}
NANO = {"num_hidden_layers": 5, "hybrid_override_pattern": "MEM*E", "n_routed_experts": 7, "vocab_size": 512}
SUPER = {"num_hidden_layers": 4, "hybrid_override_pattern": "MEM*", "n_routed_experts": 24, "vocab_size": 512}
CUTS = {"gpt-oss-20b": GPT_OSS, "gpt-oss-20b-bf16": GPT_OSS, "gpt-oss-120b": GPT_OSS, "gpt-oss-120b-bf16": GPT_OSS,
        "mixtral-8x7b": MIXTRAL, "mixtral-8x7b-fp8": MIXTRAL, "qwen3-30b-a3b": QWEN3, "qwen3-30b-a3b-fp8": QWEN3,
        "nemotron-3-nano-30b-a3b-bf16": NANO, "nemotron-3-nano-30b-a3b-fp8": NANO,
        "nemotron-3-nano-30b-a3b-nvfp4": NANO, "nemotron-3-super-120b-a12b-bf16": SUPER,
        "nemotron-3-super-120b-a12b-mixed": SUPER}
INFO = {**os.environ, "ROTA_LOG_LEVEL": "info"}


def write_super_mixed(folder):
    """Its config.json and hf_quant_config.json: both name each of 40960 experts' matrices, too much to keep here."""
    config = json.loads((DATA / "nemotron-3-super-120b-a12b-bf16/config.json").read_text())
    named = json.loads((DATA / "nemotron-3-super-120b-a12b-mixed/quantized_layers.json").read_text())
    experts = [f"backbone.layers.{layer}.mixer.experts.{expert}.{matrix}"
               for layer, kind in enumerate(config["hybrid_override_pattern"]) if kind == "E"
               for expert in range(config["n_routed_experts"]) for matrix in ("up_proj", "down_proj")]
    nvfp4 = named["NVFP4"] + experts
    layers = {**{module: {"quant_algo": "FP8"} for module in named["FP8"]},
              **{module: {"quant_algo": "NVFP4", "group_size": 16} for module in nvfp4}}

    def group(bits, targets, **more):
        scheme = {"dynamic": False, "num_bits": bits, "type": "float", **more}
        return {"input_activations": scheme, "weights": scheme, "targets": targets}
    config["quantization_config"] = {
        "config_groups": {"group_0": group(8, named["FP8"]), "group_1": group(4, nvfp4, group_size=16)},
        "quantized_layers": layers, "ignore": [], "quant_algo": "MIXED_PRECISION", "quant_method": "modelopt",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}
    quant = {"producer": {"name": "modelopt"},
             "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8",
                              "quantized_layers": layers}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text(json.dumps(quant))
    return folder


def dummy(preset):
    """Flags of a start without weights."""
    return ("--load-format", "dummy", "--hf-overrides", json.dumps(CUTS[preset]))


class Start(unittest.TestCase):
    FLAGS = ("--max-model-len", 512, "--kv-cache-memory-bytes", 128 << 20, "--max-num-seqs", 1)

    def measured(self, folder, *flags):
        """Starts, generates; what the engine says that it took."""
        done = harness.rota("generate", folder, *flags, "--prompt-ids", "1,2,3,4", "--max-tokens", 3, "--ignore-eos",
                            "--json", env=INFO)
        self.assertEqual(len(json.loads(done.stdout)["token_ids"]), 3)
        found = re.search(r"memory in bytes: weights (\d+), copies (\d+), workspace (\d+), KV cache (\d+)", done.stderr)
        return dict(zip(("weights", "copies", "workspace", "cache"), map(int, found.groups())))

    def planned(self, folder, *flags):
        plan = json.loads(harness.rota("plan", folder, "--json", *flags).stdout)
        return {"weights": plan["weights"]["bytes"], "copies": plan["weights"]["copied_bytes"],
                "workspace": plan["workspace_bytes"], "cache": plan["kv"]["cache_bytes"]}

    def compare(self, preset, *flags):
        with tempfile.TemporaryDirectory() as temporary:
            folder = DATA / preset
            if preset == "nemotron-3-super-120b-a12b-mixed":
                folder = write_super_mixed(pathlib.Path(temporary))
            flags = (*dummy(preset), *self.FLAGS, *flags)
            measured, planned = self.measured(folder, *flags), self.planned(folder, *flags)
        self.assertEqual(set(measured), set(planned))
        for name, value in measured.items():
            self.assertAlmostEqual(planned[name], value, delta=value / 100, msg=f"{preset}: {name}")
        return measured

    def test_every_preset_starts_generates_and_takes_what_its_plan_says(self):
        for preset in CUTS:
            with self.subTest(preset=preset):
                self.compare(preset)

    def test_padded_copies_are_planned_too(self):
        for preset in ("gpt-oss-20b", "nemotron-3-nano-30b-a3b-nvfp4"):
            with self.subTest(preset=preset):
                taken = self.compare(preset, "--moe-hidden-alignment", 256, "--moe-intermediate-alignment", 128)
                self.assertGreater(taken["copies"], 0)

    def test_a_checkpoint_that_is_there_is_not_read_for_random_weights(self):
        folder = harness.GOLDENS / "gptoss-mxfp4-h160"
        cut = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
        flags = ("--load-format", "dummy", "--hf-overrides", json.dumps(cut), *self.FLAGS)
        self.assertEqual(self.measured(folder, *flags), self.planned(folder, *flags))

    def test_layers_are_cut_in_every_field_that_counts_them(self):
        for preset, field in (("gpt-oss-20b", "layer_types"),
                              ("nemotron-3-nano-30b-a3b-nvfp4", "hybrid_override_pattern")):
            done = harness.rota("generate", DATA / preset, "--load-format", "dummy", "--hf-overrides",
                                '{"num_hidden_layers": 2}', "--prompt-ids", "1", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"num_hidden_layers.*{field}|{field}.*num_hidden_layers")


class PaddedWidths(unittest.TestCase):
    """The flags of public reports, one rank: vLLM #52051 died of 2880 rounded to 3072 in its start-up profiling, #36926
    of 2688 rounded to 3072 while it loaded, #40794 of 2688 rounded to 2816 before the shared experts were added."""
    REPORT = ("--tensor-parallel-size", 1, "--data-parallel-size", 1, "--enable-expert-parallel", "--max-model-len",
              4096)
    PROMPTS = {f"p{i}": [(31 * i + 7 * j) % 500 for j in range(2 + 3 * i)] for i in range(10)}

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "ids.json").write_text(json.dumps(self.PROMPTS))

    def tearDown(self):
        self.temporary.cleanup()

    def scored(self, preset, *flags):
        out = self.folder / "out.safetensors"
        harness.rota("score", DATA / preset, *dummy(preset), *self.REPORT, *flags, "--ids-file",
                     self.folder / "ids.json", "--out", out)
        return load_file(out)

    def served(self, preset, *flags):
        """What a server answers to the prompts, with logprobs."""
        model = harness.with_tokenizer(DATA / preset, self.folder / preset)
        with harness.Server(model, *dummy(preset), *self.REPORT, *flags) as server:
            return server.json("POST", "/v1/completions",
                               {"model": "demo", "prompt": list(self.PROMPTS.values()), "max_tokens": 3,
                                "ignore_eos": True, "temperature": 0, "logprobs": 5})["choices"]

    def check_served(self, preset, *alignments):
        answers = self.served(preset)
        self.assertEqual(len(answers), len(self.PROMPTS))
        for alignment in alignments:
            self.assertEqual(self.served(preset, "--moe-hidden-alignment", alignment), answers)

    def check(self, preset, width, *alignments):
        plain = self.scored(preset)
        self.assertEqual(len(plain), len(self.PROMPTS))
        for alignment, padded_width in alignments:
            flags = ("--moe-hidden-alignment", alignment)
            plan = json.loads(harness.rota("plan", DATA / preset, *dummy(preset), *self.REPORT, *flags,
                                           "--json").stdout)
            steps = {step["name"]: step for step in plan["widths"]}
            self.assertEqual((steps["experts_out"]["logical"], steps["experts_out"]["padded"]), (width, padded_width))
            padded = self.scored(preset, *flags)
            for name, logits in plain.items():
                self.assertTrue(np.isfinite(logits).all())
                np.testing.assert_array_equal(padded[name].view(np.uint32), logits.view(np.uint32), name)

    def test_vllm_52051_gpt_oss_2880_in_3072(self):
        self.check("gpt-oss-20b", 2880, (256, 3072))
        self.check_served("gpt-oss-20b", 256)

    def test_vllm_52051_the_same_at_3072_in_bf16(self):
        self.check("gpt-oss-20b-bf16", 2880, (3072, 3072))

    def test_vllm_36926_nano_2688_in_2816_and_in_the_low_latency_list(self):
        self.check("nemotron-3-nano-30b-a3b-nvfp4", 2688, (256, 2816), (3072, 3072))
        self.check_served("nemotron-3-nano-30b-a3b-nvfp4", 256, 3072)

    def test_vllm_36926_the_same_at_3072_in_bf16(self):
        self.check("nemotron-3-nano-30b-a3b-bf16", 2688, (3072, 3072))


if __name__ == "__main__":
    harness.main()
