"""Where ranks may run: hosts of a file, an outer mpirun; and `rota doctor`, which says what stands in the way."""
import json
import os
import pathlib
import stat
import subprocess
import tempfile
import unittest

import harness

MODEL = harness.GOLDENS / "gptoss-mxfp4-h160"
FLAGS = ("--dtype", "float32", "--max-model-len", 256, "--kv-cache-memory-bytes", 32 << 20, "--max-num-seqs", 8,
         "--max-num-batched-tokens", 64, "--generation-config", "vllm")


class Hosts(unittest.TestCase):
    """Two names for this machine, each with a daemon of MPI's own: what would go by ssh is run here."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        agent = self.folder / "agent"
        agent.write_text('#!/bin/sh\ncase "$1" in silent) exec sleep 60;; gone) echo "no route to gone" >&2; exit 255;; esac\n'
                         'shift\nexec sh -c "$*"\n')
        agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
        # MPI takes two names of one machine for two: their shared memory would have the same names.
        self.env = {"OMPI_MCA_plm_rsh_agent": str(agent), "OMPI_MCA_btl": "self,tcp"}

    def hosts(self, text):
        path = self.folder / "hosts"
        path.write_text(text)
        return str(path)

    def doctor(self, *flags):
        done = harness.rota("doctor", "--json", *flags, check=False, env={**os.environ, **self.env})
        found = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if found["verdict"] == "problem" else 0, done.stderr)
        return found["verdict"], {it["check"]: it for it in found["checks"]}

    def completion(self, server):
        return server.json("POST", "/v1/completions", {
            "model": "demo", "prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "ignore_eos": True,
            "logprobs": 1})["choices"][0]

    def test_ranks_on_the_hosts_of_a_file_answer_as_one_process(self):
        with harness.Server(MODEL_WITH_TEXT, *FLAGS) as server:
            expected = self.completion(server)
        hosts = self.hosts("localhost slots=1\nother slots=1\n")
        with harness.Server(MODEL_WITH_TEXT, *FLAGS, "-dp", 2, "-ep", "--hostfile", hosts, env=self.env) as server:
            self.assertEqual(self.completion(server), expected)
            self.assertEqual(len(server.json("GET", "/v1/rota/topology")["ranks"]), 2)
        self.assertEqual(server.process.returncode, 0)

    def test_a_faulty_host_list_is_told_before_anything_starts(self):
        for text, flags, said in (("localhost slots=1\n", ("-dp", 2), "1 host(s) with 1 slots in all, for 2 ranks"),
                                  ("localhost slots=x\n", ("-dp", 2), 'line 1: "slots=x" is no number of ranks'),
                                  ("localhost slots=2\n", (), "there is one rank, and it runs here")):
            done = harness.rota("serve", MODEL_WITH_TEXT, *flags, "--hostfile", self.hosts(text), check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr.splitlines()[0])
        done = harness.rota("serve", MODEL_WITH_TEXT, "-dp", 2, "--hostfile", "/no/such/file", check=False)
        self.assertIn("--hostfile: /no/such/file", done.stderr.splitlines()[0])

    def test_what_no_rank_could_start_with_is_told_once(self):
        long = self.folder / ("a" * 90)
        long.mkdir()
        for variables, said in (({"PATH": str(self.folder)}, "install OpenMPI 4.1"),
                                ({"XDG_RUNTIME_DIR": str(long)}, "longer than 107 bytes; set XDG_RUNTIME_DIR")):
            for command in (("serve", "--port", 0), ("generate", "--prompt-ids", "1,2")):
                done = harness.rota(command[0], MODEL_WITH_TEXT, *command[1:], *FLAGS, "-dp", 2, check=False,
                                    env={**os.environ, **variables})
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, f"^rota: .*{said}.*\n$")
        self.assertEqual(list(long.iterdir()), [])
        harness.rota("generate", MODEL_WITH_TEXT, "--prompt-ids", "1,2", "--max-tokens", 2, *FLAGS,
                     env={**os.environ, "PATH": str(self.folder)})  # one rank needs nothing of this

    def test_few_descriptors_are_told_once(self):
        few = "ulimit -n 32 && exec \"$@\""
        done = subprocess.run(["sh", "-c", few, "sh", harness.ROTA, "serve", MODEL_WITH_TEXT, "--port", "0",
                               "-dp", "2"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^rota: .*may open 32 files.*\n$")

    def test_the_doctor_finds_two_ranks_sound(self):
        verdict, checks = self.doctor(MODEL, *FLAGS, "-dp", 2, "-ep")
        self.assertNotEqual(verdict, "problem", checks)
        self.assertIn("one-sided windows", checks["exchanges"]["found"])
        self.assertIn("allgather_reducescatter", checks["exchanges"]["found"])
        for name in ("mpirun", "start", "program", "build", "cores", "shared memory", "model", "memory"):
            self.assertIn(name, checks)
        self.assertIn("same options, configuration and weight index", checks["model"]["found"])

    def test_the_doctor_names_the_host_that_does_not_answer(self):
        for host, said in (("silent", "no answer within 3 s"), ("gone", "no route to gone")):
            verdict, checks = self.doctor("-dp", 2, "--host-timeout", 3, "--hostfile",
                                          self.hosts(f"localhost slots=1\n{host} slots=1\n"))
            self.assertEqual(verdict, "problem")
            self.assertIn(said, checks[f"host {host}"]["found"])
            self.assertIn(f"`ssh {host}` must work", checks[f"host {host}"]["advice"])
            self.assertNotIn("start", checks)

    def test_the_doctor_says_which_cuts_work(self):
        verdict, checks = self.doctor(MODEL, *FLAGS, "-tp", 3)
        self.assertEqual(verdict, "problem")
        self.assertIn("sizes that work for this model: 1, 2, 4", checks["model"]["found"])

    def test_the_doctor_without_mpirun(self):
        self.env["PATH"] = str(self.folder)
        verdict, checks = self.doctor("-dp", 2)
        self.assertEqual(verdict, "problem")
        self.assertIn("openmpi-bin", checks["mpirun"]["found"])

    def test_inside_an_outer_mpirun(self):
        root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        server = harness.Server(MODEL_WITH_TEXT, *FLAGS, "-dp", 2, "-ep")
        server.command = ["mpirun", *root, "-n", "1", "--bind-to", "none", *server.command]
        with server:
            self.assertEqual(len(server.json("GET", "/v1/rota/topology")["ranks"]), 2)
            self.assertEqual(self.completion(server)["finish_reason"], "length")


if __name__ == "__main__":
    harness.OUTPUT.mkdir(parents=True, exist_ok=True)
    MODEL_WITH_TEXT = harness.with_tokenizer(MODEL, harness.OUTPUT / "hosts-model")
    harness.main()
