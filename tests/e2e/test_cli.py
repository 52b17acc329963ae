"""The command line: generate, score, plan, backends, eval, and what it says about wrong input."""
import json
import pathlib
import re
import shutil
import tempfile
import unittest

import harness
import numpy as np
from safetensors.numpy import load_file, save_file

TINY = harness.GOLDENS / "gptoss-mxfp4-h160"
MIXTRAL = harness.GOLDENS / "mixtral-bf16-h72"


class Generate(unittest.TestCase):
    def test_json_has_the_golden_tokens(self):
        for model in (TINY, MIXTRAL):
            golden = json.loads((model / "golden.json").read_text())
            for prompt in ("p7", "b12"):
                ids = golden["prompts"][prompt]["ids"]
                out = json.loads(harness.rota("generate", model, "--prompt-ids", ",".join(map(str, ids)),
                                              "--max-tokens", 32, "--temperature", 0, "--ignore-eos", "--json",
                                              "--dtype", "float32").stdout)
                self.assertEqual(out["token_ids"], golden["prompts"][prompt]["greedy"])
                self.assertEqual(out["finish_reason"], "length")
                self.assertEqual(len(out["logprobs"]), 32)
                self.assertTrue(all(value <= 0 for value in out["logprobs"]))

    def test_a_seed_gives_the_same_tokens_again(self):
        runs = [json.loads(harness.rota("generate", TINY, "--prompt-ids", "5,6,7", "--max-tokens", 16, "--temperature",
                                        1, "--seed", seed, "--ignore-eos", "--json").stdout)["token_ids"]
                for seed in (7, 7, 8)]
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0], runs[2])


class Score(unittest.TestCase):
    def test_logits_hidden_and_router_are_the_goldens(self):
        golden = load_file(TINY / "golden.safetensors")
        doc = json.loads((TINY / "golden.json").read_text())
        names = ["p7", "b5", "b12", "b33"]
        with tempfile.TemporaryDirectory() as folder:
            ids, out, alone = (pathlib.Path(folder) / name for name in ("ids.json", "out.st", "alone.st"))
            ids.write_text(json.dumps({name: doc["prompts"][name]["ids"] for name in names}))
            harness.rota("score", TINY, "--ids-file", ids, "--out", out, "--dump", "hidden,router", "--dtype",
                         "float32")
            harness.rota("score", TINY, "--ids-file", ids, "--out", alone, "--alone", "--dtype", "float32")
            scored, one_by_one = load_file(out), load_file(alone)
        bound = doc["suggested_tolerance"]["fp32 compute"]["logits_max_abs"]
        for name in names:
            self.assertLess(np.abs(scored[f"{name}.logits"] - golden[f"{name}.logits"]).max(), bound)
            np.testing.assert_array_equal(scored[f"{name}.logits"], one_by_one[f"{name}.logits"])
            error = np.linalg.norm(scored[f"{name}.hidden"] - golden[f"{name}.hidden"])
            self.assertLess(error / np.linalg.norm(golden[f"{name}.hidden"]), 1e-4)
            for layer in range(4):
                key = f"{name}.router.{layer}.ids"
                np.testing.assert_array_equal(np.sort(scored[key]), np.sort(golden[key]))


class Plan(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        shutil.copy(harness.ROOT / "tests/data/gpt-oss-120b/config.json", self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def test_of_a_config_alone_shows_widths_and_bytes(self):
        text = harness.rota("plan", self.folder.name, "--moe-hidden-alignment", 256,
                            "--moe-intermediate-alignment", 128).stdout
        self.assertRegex(text, r"2880 -> 3072")
        self.assertRegex(text, r"2880 -> 2944")
        self.assertIn("65248815744 bytes", text)

    def test_json_says_the_same(self):
        plan = json.loads(harness.rota("plan", self.folder.name, "--json", "--moe-hidden-alignment", 256).stdout)
        widths = {step["name"]: step for step in plan["widths"]}
        self.assertEqual((widths["experts_in"]["logical"], widths["experts_in"]["padded"]), (2880, 3072))
        self.assertEqual(widths["router_in"]["padded"], 2880)
        self.assertEqual(plan["weights"]["bytes"], 65248815744)
        self.assertGreater(plan["weights"]["copied_bytes"], 0)

    def test_without_alignment_nothing_is_padded_or_copied(self):
        plan = json.loads(harness.rota("plan", self.folder.name, "--json").stdout)
        self.assertTrue(all(step["logical"] == step["padded"] for step in plan["widths"]))
        self.assertEqual(plan["weights"]["copied_bytes"], 0)
        self.assertEqual(plan["weights"]["mapped_bytes"], 65248815744)

    def test_refusals_are_named(self):
        plan = harness.rota("plan", MIXTRAL).stdout
        self.assertRegex(plan, r"not cpu_mxfp4_bf16 +\S+")


class Say(unittest.TestCase):
    """Wrong input gets a message that names it, never a crash."""

    def refused(self, *arguments):
        done = harness.rota(*arguments, check=False)
        self.assertIn(done.returncode, (1, 2), done.stderr)
        return done.stderr + done.stdout

    def test_unknown_folder(self):
        self.assertIn("/nowhere/at/all", self.refused("generate", "/nowhere/at/all", "--prompt", "x"))

    def test_unknown_backend(self):
        message = self.refused("plan", TINY, "--moe-backend", "gpu")
        self.assertIn("gpu", message)
        self.assertIn("cpu_mxfp4_bf16", message)

    def test_backend_that_cannot_serve_says_why(self):
        self.assertRegex(self.refused("plan", MIXTRAL, "--moe-backend", "cpu_mxfp4_bf16"), "MXFP4")

    def test_wrong_values(self):
        self.assertIn("dtype", self.refused("plan", TINY, "--dtype", "int3"))
        self.assertIn("prompt-ids", self.refused("generate", TINY, "--prompt-ids", "1,x"))
        self.assertIn("--no-such-flag", self.refused("plan", TINY, "--no-such-flag"))
        self.assertIn("4096", self.refused("generate", TINY, "--prompt-ids", "4096", "--max-tokens", "1"))

    def test_damaged_scale_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            tensors_path = pathlib.Path(folder) / "model.safetensors"
            for file in ("config.json", "generation_config.json"):
                shutil.copy(TINY / file, folder)
            data = bytearray((TINY / "model.safetensors").read_bytes())
            header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            start = 8 + int.from_bytes(data[:8], "little")
            name = "model.layers.1.mlp.experts.down_proj_scales"
            begin, end = header[name]["data_offsets"]
            data[start + begin:start + end] = b"\xff" * (end - begin)
            tensors_path.write_bytes(data)
            message = self.refused("generate", folder, "--prompt-ids", "1,2,3", "--max-tokens", "4")
            self.assertIn(name, message)


class Config(unittest.TestCase):
    def test_file_environment_and_command_line_in_this_order(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rota.yaml"
            path.write_text("moe-hidden-alignment: 256\nmoe_intermediate_alignment: 128\n")

            def widths(*flags, **env):
                import os
                plan = json.loads(harness.rota("plan", TINY, "--json", "--config", path, *flags,
                                               env={**os.environ, **env}).stdout)
                steps = {step["name"]: step for step in plan["widths"]}
                return steps["experts_in"]["padded"], steps["intermediate"]["padded"]
            self.assertEqual(widths(), (256, 128))
            self.assertEqual(widths(ROTA_MOE_HIDDEN_ALIGNMENT="512"), (512, 128))
            self.assertEqual(widths("--moe-hidden-alignment", 64, ROTA_MOE_HIDDEN_ALIGNMENT="512"), (192, 128))


class Backends(unittest.TestCase):
    def test_lists_all_of_them(self):
        text = harness.rota("backends").stdout
        for name in ("cpu_mxfp4_bf16", "cpu_bf16", "ref", "no_dp_ep", "avx2", "avx512"):
            self.assertIn(name, text)

    def test_a_forced_isa_is_in_use(self):
        import os
        text = harness.rota("backends", env={**os.environ, "ROTA_ISA": "ref"}).stdout
        self.assertTrue(re.search(r"ref +yes, in use", text))


if __name__ == "__main__":
    harness.main()
