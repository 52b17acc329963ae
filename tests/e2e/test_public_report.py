"""The public report's scenario, under its own flags: one model, eight data-parallel ranks, experts dealt to them, widths
that no kernel likes. A server of eight ranks that pad starts, plans its memory and answers with the bits of one process
that does not pad, on the same random weights at the real hidden size."""
import json
import os
import pathlib
import tempfile
import unittest

import harness

DATA = harness.ROOT / "tests/data"
RANKS = 8
REPORT = ("--tensor-parallel-size", 1, "--data-parallel-size", RANKS, "--enable-expert-parallel", "--max-model-len",
          4096)
ALONE = ("--max-model-len", 4096)
SMALL = ("--seed", 11, "--threads", 1, "--max-num-seqs", 16, "--max-num-batched-tokens", 64, "--kv-cache-memory-bytes",
         96 << 20, "--generation-config", "vllm")
# Real widths of what is padded; few layers, heads, experts (more than ranks, not a multiple of them) and tokens.
GPT_OSS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "num_local_experts": 9,
           "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 512}
NANO = {"num_hidden_layers": 4, "hybrid_override_pattern": "ME*E", "n_routed_experts": 9, "num_experts_per_tok": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_num_heads": 8, "n_groups": 2, "vocab_size": 512}
PROMPTS = [[(31 * i + 7 * j) % 500 for j in range(2 + 3 * i)] for i in range(10)]


class PublicReport(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def served(self, preset, cuts, *flags):
        """Answers to the prompts with all that the API tells of their logits, and where the experts were."""
        model = harness.with_tokenizer(DATA / preset, self.folder / preset)
        dummy = ("--load-format", "dummy", "--hf-overrides", json.dumps(cuts))
        with harness.Server(model, *dummy, *SMALL, *flags, env={"XDG_RUNTIME_DIR": str(self.folder)}) as server:
            answers = server.json("POST", "/v1/completions",
                                  {"model": "demo", "prompt": PROMPTS, "max_tokens": 3, "ignore_eos": True,
                                   "temperature": 0, "logprobs": 5, "echo": True})["choices"]
            topology = server.json("GET", "/v1/rota/topology")
            log = "".join(server.log)
        self.assertEqual(server.process.returncode, 0)
        return answers, topology, log

    def check(self, preset, cuts, transport, *padding):
        expected, alone, _ = self.served(preset, cuts, *ALONE)
        answers, topology, log = self.served(preset, cuts, *REPORT, *padding)
        self.assertEqual(len(alone["ranks"]), 1)
        self.assertEqual([rank["rank"] for rank in topology["ranks"]], list(range(RANKS)))
        self.assertEqual(topology["transport"], transport)
        held = [expert for rank in topology["ranks"] for expert in rank["experts"]]
        self.assertEqual(sorted(held), list(range(9)))
        self.assertRegex(log, r"KV cache: .* \(max_model_len\)")
        self.assertEqual(len(answers), len(PROMPTS))
        for index, (answer, wanted) in enumerate(zip(answers, expected)):
            self.assertEqual(len(answer["logprobs"]["token_logprobs"]), len(PROMPTS[index]) + 3)
            # Every number as it is written: none is rounded on its way.
            self.assertEqual(json.dumps(answer["logprobs"]), json.dumps(wanted["logprobs"]), f"prompt {index}")
            self.assertEqual(answer["text"], wanted["text"])

    def padded_width(self, preset, cuts, step, *flags):
        plan = harness.rota("plan", DATA / preset, "--load-format", "dummy", "--hf-overrides", json.dumps(cuts),
                            *REPORT, *flags, "--json").stdout
        widths = {it["name"]: it for it in json.loads(plan)["widths"]}
        return widths[step]["logical"], widths[step]["padded"]

    def test_vllm_52051_gpt_oss_2880_in_3072_on_eight_ranks_mxfp4(self):
        padding = ("--moe-hidden-alignment", 256)
        self.assertEqual(self.padded_width("gpt-oss-20b", GPT_OSS, "experts_out", *padding), (2880, 3072))
        self.check("gpt-oss-20b", GPT_OSS, "allgather_reducescatter", *padding)

    def test_vllm_52051_gpt_oss_2880_in_3072_on_eight_ranks_bf16(self):
        padding = ("--moe-hidden-alignment", 256)
        self.assertEqual(self.padded_width("gpt-oss-20b-bf16", GPT_OSS, "experts_out", *padding), (2880, 3072))
        self.check("gpt-oss-20b-bf16", GPT_OSS, "allgather_reducescatter", *padding)

    def test_vllm_36926_nano_2688_in_3072_on_eight_ranks_low_latency(self):
        padding = ("--all2all-backend", "low_latency")
        preset = "nemotron-3-nano-30b-a3b-nvfp4"
        self.assertEqual(self.padded_width(preset, NANO, "dispatch", *padding), (2688, 3072))
        self.check(preset, NANO, "low_latency", *padding)


if __name__ == "__main__":
    harness.main()
