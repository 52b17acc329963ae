"""The command line: generate, score, plan, backends, eval, and what it says about wrong input."""
import json
import os
import pathlib
import re
import shutil
import subprocess
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
        # Whether the copies fit here is said, and no error: the plan may be for a larger machine.
        text = harness.rota("plan", self.folder.name, "--moe-hidden-alignment", 256,
                            "--moe-intermediate-alignment", 128).stdout
        self.assertRegex(text, r"2880 -> 3072")
        self.assertRegex(text, r"2880 -> 2944")
        self.assertIn("65248815744 bytes", text)

    def test_json_says_the_same(self):
        plan = json.loads(harness.rota("plan", self.folder.name, "--json", "--moe-hidden-alignment",
                                       256).stdout)
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

    def test_bytes_of_a_tiny_model_are_shown_in_its_units(self):
        text = harness.rota("plan", TINY).stdout
        self.assertRegex(text, r"Weights +\d+\.\d\d (kB|MB) \(")
        self.assertNotIn("0.00 GB", text)

    def test_what_cannot_be_served_is_no_plan(self):
        for flags in (("--kv-cache-memory-bytes", 1000), ("--kv-cache-memory-bytes", 1000, "--json")):
            done = harness.rota("plan", TINY, *flags, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"one sequence of 131072 tokens: that takes \d+ bytes")
            self.assertRegex(done.stderr, r"the shortest cache, of 64 tokens, takes \d+ bytes")
            self.assertNotIn("0 or less", done.stderr)
        self.assertIn("experts_in", done.stdout)  # the plan itself is shown

    def test_copies_that_fit_in_no_memory_name_their_flag(self):
        plan = harness.rota("plan", self.folder.name, "--moe-hidden-alignment", 65536)
        self.assertIn("Not on this machine", plan.stdout)
        serve = harness.rota("serve", TINY, "--moe-hidden-alignment", 65536, "--kv-cache-memory-bytes", 1 << 60,
                             check=False)
        self.assertEqual(serve.returncode, 1)
        for text in (plan.stdout, serve.stderr):
            self.assertIn("padded copies of the experts take", text)
            self.assertIn("because of --moe-hidden-alignment 65536", text)

    def test_refusals_are_named(self):
        plan = harness.rota("plan", MIXTRAL).stdout
        self.assertRegex(plan, r"not cpu_mxfp4_bf16 +\S+")


class Say(unittest.TestCase):
    """Wrong input gets a message that names it, never a crash."""

    def refused(self, *arguments, **options):
        done = harness.rota(*arguments, check=False, **options)
        self.assertIn(done.returncode, (1, 2), done.stderr)
        return done.stderr + done.stdout

    def test_unknown_folder(self):
        self.assertIn("/nowhere/at/all", self.refused("generate", "/nowhere/at/all", "--prompt", "x"))

    def test_a_folder_where_a_flag_wants_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for command in (("plan", TINY), ("backends",), ("generate", TINY, "--prompt", "x"), ("serve", TINY)):
                expected = f"--config: {folder}: is a folder, expected a regular file"
                self.assertIn(expected, self.refused(*command, "--config", folder))
                self.assertIn(expected, self.refused(*command, env={**os.environ, "ROTA_CONFIG": folder}))
            for flag, command in (("--ids-file", ("score", TINY, "--out", folder + "/o.safetensors")),
                                  ("--text", ("eval", "ppl", TINY))):
                self.assertIn(f"{flag}: {folder}: is a folder, expected a regular file",
                              self.refused(*command, flag, folder))

    def test_a_flag_that_is_none_is_named_with_the_nearest(self):
        for command in (("serve", "m"), ("eval", "ppl", "m")):
            done = harness.rota(*command, "--data-paralel-size", 2, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--data-paralel-size: `rota ", done.stderr)
            self.assertIn("the nearest is --data-parallel-size", done.stderr)

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

    def test_longer_than_the_model_was_made_for(self):
        for command in ("plan", "serve", "generate"):
            flags = ("--prompt-ids", "1,2") if command == "generate" else ()
            message = self.refused(command, TINY, "--max-model-len", 131073, *flags)
            self.assertIn("--max-model-len: 131073", message)
            self.assertIn("max_position_embeddings, 131072", message)

    def test_a_cache_in_which_nothing_fits_is_refused_before_an_engine_is_started(self):
        message = self.refused("serve", TINY, "--kv-cache-memory-bytes", 1000)
        self.assertIn("the shortest cache, of 64 tokens, takes", message)
        self.assertNotIn("listening", message)

    def test_numbers_that_are_none(self):
        for flag, value, expected in (("--threads", "abc", "whole number from -2147483648 to 2147483647"),
                                      ("--threads", "1.5", "whole number"),
                                      ("--seed", "99999999999999999999", "whole number"),
                                      ("--memory-utilization", "most", "not a number")):
            with self.subTest(flag=flag, value=value):
                message = self.refused("plan", TINY, f"{flag}={value}")
                self.assertIn(flag, message)
                self.assertIn(f'"{value}" is not a', message)
                self.assertIn(expected, message)
        self.assertIn("--max-num-seqs", self.refused("plan", TINY, "--max-num-seqs="))
        self.assertIn("from 0 to 65535", self.refused("serve", TINY, "--port=99999"))
        for given in ({"env": {**os.environ, "ROTA_PIN": "abc"}}, {}):
            flags = () if given else ("--pin=abc",)
            self.assertIn('--pin: "abc" is neither true nor false', self.refused("plan", TINY, *flags, **given))
        self.assertIn('"x" is not a number', self.refused("generate", TINY, "--prompt-ids", "1", "--top-p=x"))
        self.assertIn('"many" is not a whole number',
                      self.refused("plan", TINY, env={**os.environ, "ROTA_MAX_NUM_SEQS": "many"}))

    def test_sampling_is_checked_before_a_model_is_read(self):
        for command, flags in (("generate", ("--prompt-ids", "1,2")), ("chat", ("--once", "Hi"))):
            for flag, value in (("--top-p", "7"), ("--temperature", "-1"), ("--repetition-penalty", "0"),
                                ("--top-k", "-5"), ("--min-p", "nan")):
                message = self.refused(command, "/nowhere/at/all", *flags, f"{flag}={value}")
                self.assertIn(f"{flag}: ", message)
                self.assertNotIn("/nowhere", message)

    def test_chat_asks_for_something_to_answer(self):
        self.assertIn("--once: the message is empty", self.refused("chat", TINY, "--once", ""))
        self.assertIn("--once: the message is empty", self.refused("chat", TINY, "--once", " \n"))
        self.assertIn("low, medium, high", self.refused("chat", TINY, "--once", "Hi", "--reasoning-effort", "silly"))

    def test_a_log_level_that_is_none(self):
        for level in ("verbose", "INFO ", "4"):
            message = self.refused("plan", TINY, env={**os.environ, "ROTA_LOG_LEVEL": level})
            self.assertIn(f"ROTA_LOG_LEVEL={level}", message)
            self.assertIn("debug, info, warning, error, off", message)
        harness.rota("plan", TINY, env={**os.environ, "ROTA_LOG_LEVEL": "warning"})

    def test_an_isa_is_named_as_it_was_given(self):
        message = self.refused("plan", TINY, "--isa", "sse9")
        self.assertIn("--isa sse9", message)
        self.assertNotIn("ROTA_ISA", message)
        message = self.refused("plan", TINY, env={**os.environ, "ROTA_ISA": "sse9"})
        self.assertIn("ROTA_ISA=sse9", message)
        if re.search(r"avx512 +no", harness.rota("backends").stdout):
            self.assertIn("--isa avx512: this CPU", self.refused("plan", TINY, "--isa", "avx512"))

    def test_more_threads_than_cpus_are_warned_of(self):
        cpus = len(os.sched_getaffinity(0))

        def log_of(threads):
            return harness.rota("generate", TINY, "--prompt-ids", "1,2", "--max-tokens", 1, "--threads", threads,
                                env={**os.environ, "ROTA_LOG_LEVEL": "info"}).stderr
        self.assertRegex(log_of(cpus + 1), rf"--threads {cpus + 1}: this process may run on {cpus} CPUs")
        self.assertNotIn("may run on", log_of(1))
        self.assertIn("--threads: 100000 is more than 1024", self.refused("plan", TINY, "--threads", 100000))

    def test_a_thread_that_cannot_be_started(self):
        # A thread's stack takes 8 MB of what a process may address.
        done = subprocess.run(["sh", "-c", 'ulimit -s 8192 && ulimit -v 4000000 && exec "$@"', "sh", harness.ROTA,
                               "generate", str(TINY), "--prompt-ids", "1,2", "--threads", "1000"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("rota: a thread could not be started", done.stderr.splitlines()[-1])

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
                plan = json.loads(harness.rota("plan", TINY, "--json", "--config", path, *flags,
                                               env={**os.environ, **env}).stdout)
                steps = {step["name"]: step for step in plan["widths"]}
                return steps["experts_in"]["padded"], steps["intermediate"]["padded"]
            self.assertEqual(widths(), (256, 128))
            self.assertEqual(widths(ROTA_MOE_HIDDEN_ALIGNMENT="512"), (512, 128))
            self.assertEqual(widths("--moe-hidden-alignment", 64, ROTA_MOE_HIDDEN_ALIGNMENT="512"), (192, 128))


    def with_config(self, text, *command, check=True, **env):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rota.yaml"
            path.write_text(text)
            return harness.rota(*command, "--config", path, check=check, env={**os.environ, **env})

    def test_one_file_serves_several_commands(self):
        shared = "port: 8080\nmax-tokens: 3\ntop_p: 0.5\nmax-num-seqs: 4\nserved-model-name: [a, b]\n"
        done = self.with_config(shared, "plan", TINY, ROTA_LOG_LEVEL="debug")
        for key in ("port", "max-tokens", "top_p", "served-model-name"):
            self.assertIn(f"{key} is another command's", done.stderr)
        self.assertNotIn("max-num-seqs is", done.stderr)
        out = json.loads(self.with_config(shared, "generate", TINY, "--prompt-ids", "1,2", "--ignore-eos",
                                          "--json").stdout)
        self.assertEqual(len(out["token_ids"]), 3)

    def test_a_key_that_is_nobodys_names_the_nearest(self):
        for key, nearest in (("max-num-seq", "max-num-seqs"), ("prot", "port"), ("kv_cache_memory", "kv-cache-memory")):
            done = self.with_config(f"{key}: 4\n", "plan", TINY, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{key}: there is no such key; the nearest is {nearest}", done.stderr)

    def test_a_key_that_comes_twice_or_names_another_file_is_refused(self):
        for text, key in (("max-num-seqs: 4\nmax-num-seqs: 8\n", "max-num-seqs"),
                          ("max-num-seqs: 4\nmax_num_seqs: 4\n", "max_num_seqs"), ("config: other.yaml\n", "config")):
            done = self.with_config(text, "plan", TINY, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"rota\.yaml: {key}: (is given twice|a file cannot name another)")

    def test_a_command_of_two_words_reads_it_too(self):
        done = self.with_config("max-num-seqs: none\n", "eval", "ppl", TINY, "--text", "/nowhere", check=False)
        self.assertIn("--max-num-seqs", done.stderr)


class Backends(unittest.TestCase):
    def test_lists_all_of_them(self):
        text = harness.rota("backends").stdout
        for name in ("cpu_mxfp4_bf16", "cpu_bf16", "ref", "no_dp_ep", "avx2", "avx512"):
            self.assertIn(name, text)

    def test_a_forced_isa_is_in_use(self):
        text = harness.rota("backends", env={**os.environ, "ROTA_ISA": "ref"}).stdout
        self.assertTrue(re.search(r"ref +yes, in use", text))


if __name__ == "__main__":
    harness.main()
