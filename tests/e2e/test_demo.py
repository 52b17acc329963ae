"""The demo checkpoints: one function in three formats, and real answers, of one process and over ranks."""
import json
import os
import pathlib
import unittest

import harness

TEXT = harness.ROOT / "tests/data/ppl.txt"
DENSE_FORMATS = ("gpt-oss-bf16", "mixtral-bf16")


FORMATS = (*DENSE_FORMATS, "gpt-oss-mxfp4")
# 576 wide: 768 at the ranks.
DP8_EP = ("-dp", 8, "-ep", "--moe-hidden-alignment", 256)
DP4_LOW_LATENCY = ("-tp", 1, "-dp", 4, "-ep", "--all2all-backend", "low_latency", "--moe-hidden-alignment", 256)
PROBLEMS = harness.ROOT / "tests/data/gsm8k/sample.jsonl"
# Eight ranks share few cores: as much memory as the test needs, and time.
SMALL = ("--max-model-len", 2048, "--kv-cache-memory-bytes", 128 << 20, "--max-num-seqs", 16, "--rank-timeout", 300)
WHOLE = os.environ.get("ROTA_FULL") == "1"
TIMEOUT = 3000 if WHOLE else 300


def perplexity(model, *flags):
    return json.loads(harness.rota("eval", "ppl", model, "--text", TEXT, "--json", *flags).stdout)["perplexity"]


class Demo(unittest.TestCase):
    def test_capital_of_france(self):
        for layout in DENSE_FORMATS:
            answer = harness.rota("chat", harness.demo_model(layout), "--once", "What is the capital of France?",
                                  "--temperature", 0, "--max-tokens", 24).stdout
            self.assertIn("Paris", answer, layout)

    def test_perplexity_is_the_dense_models(self):
        for layout in DENSE_FORMATS:
            model = harness.demo_model(layout)
            wanted = json.loads((pathlib.Path(model) / "demo.json").read_text())["perplexity"]["dense"]
            self.assertLess(abs(perplexity(model) / wanted - 1), 0.005, layout)

    def test_mxfp4_perplexity_is_that_of_its_own_weights(self):
        model = harness.demo_model("gpt-oss-mxfp4")
        wanted = json.loads((pathlib.Path(model) / "demo.json").read_text())["perplexity"]["mixture"]
        self.assertLess(abs(perplexity(model) / wanted - 1), 0.005)

    def test_ten_questions_in_float32_give_the_dense_models_tokens(self):
        for layout in DENSE_FORMATS:
            model = harness.demo_model(layout)
            questions = json.loads((pathlib.Path(model) / "demo.json").read_text())["questions"]
            self.assertEqual(len(questions), 10)
            for question in questions:
                margins = question["margins"]
                sure = next((i for i, margin in enumerate(margins) if margin < 0.3), len(margins))
                out = json.loads(harness.rota("generate", model, "--prompt-ids",
                                              ",".join(map(str, question["prompt_ids"])), "--max-tokens",
                                              max(1, sure), "--temperature", 0, "--dtype", "float32", "--ignore-eos",
                                              "--json").stdout)
                self.assertEqual(out["token_ids"][:sure], question["tokens"][:sure], question)


class Ranks(unittest.TestCase):
    """A sample; with ROTA_FULL=1 all formats at both settings, all 50 problems and the whole text."""
    CASES = [(layout, flags) for layout in FORMATS for flags in (DP8_EP, DP4_LOW_LATENCY)] if WHOLE else \
        [("gpt-oss-mxfp4", DP4_LOW_LATENCY), ("gpt-oss-bf16", DP8_EP)]

    def test_capital_of_france(self):
        for layout, flags in self.CASES:
            if layout in DENSE_FORMATS:
                answer = harness.rota("chat", harness.demo_model(layout), "--once", "What is the capital of France?",
                                      "--temperature", 0, "--max-tokens", 24, *SMALL, *flags).stdout
                self.assertIn("Paris", answer, (layout, flags))

    def test_perplexity_is_bit_for_bit_that_of_one_process(self):
        for layout, flags in self.CASES:
            model = harness.demo_model(layout)
            text = ("--tokens", 2000 if WHOLE else 256, *SMALL)
            self.assertEqual(perplexity(model, *text, *flags), perplexity(model, *text), (layout, flags))

    def test_gsm8k_answers_are_those_of_one_process(self):
        for layout, flags in self.CASES:
            if not WHOLE and flags != DP8_EP:
                continue
            command = ("eval", "gsm8k", harness.demo_model(layout), "--data", PROBLEMS, "--max-tokens", 24, "--json",
                       "--num-problems", 50 if WHOLE else 16, *SMALL)
            alone = json.loads(harness.rota(*command).stdout)
            ranks = json.loads(harness.rota(*command, "--shuffle-seed", 11, *flags, timeout=TIMEOUT).stdout)
            self.assertEqual(ranks["answers"], alone["answers"], (layout, flags))
            self.assertEqual(len(alone["answers"]), 50 if WHOLE else 16)
            self.assertEqual((ranks["accuracy"], ranks["stderr"]), (alone["accuracy"], alone["stderr"]))


if __name__ == "__main__":
    harness.main()
