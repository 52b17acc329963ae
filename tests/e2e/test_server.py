"""The server against clients that are wrong, hostile or gone, and an engine that dies."""
import json
import os
import pathlib
import shutil
import signal
import socket
import tempfile
import threading
import time
import unittest

import harness


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server(harness.demo_model("gpt-oss-bf16"), "--max-model-len", 4096).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def refuse(self, body, field=None, status=400, path="/v1/completions"):
        if isinstance(body, dict):
            body = {"model": "demo", "prompt": "x", **body} if path == "/v1/completions" else {"model": "demo", **body}
        error = self.server.json("POST", path, body, expect=status)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        if field:
            self.assertEqual(error["param"], field, error)
        return error

    def test_wrong_values_name_their_field(self):
        for field, value in [("temperature", -1), ("temperature", 2.5), ("temperature", "hot"), ("top_p", 0),
                             ("top_p", 2), ("top_k", -2), ("min_p", 2), ("n", 0), ("n", 10**9), ("max_tokens", -1),
                             ("max_tokens", 2**31), ("max_tokens", 2**63), ("max_tokens", 1.5), ("seed", "x"),
                             ("presence_penalty", 1e30), ("repetition_penalty", 0), ("logprobs", 10**6),
                             ("logprobs", -1), ("stop", [""]), ("stop", 5), ("stop", ["x"] * 100000),
                             ("logit_bias", {"1": 1e308}), ("logit_bias", {"-4": 1}), ("logit_bias", {"x": 1}),
                             ("stop_token_ids", [-1]), ("prompt", []), ("prompt", {"a": 1}), ("prompt", [[-1]]),
                             ("stream", "yes"), ("stream_options", {"include_usage": True}), ("best_of", 4),
                             ("response_format", {"type": "json_object"}), ("suffix", "tail")]:
            with self.subTest(field=field, value=str(value)[:40]):
                self.refuse({field: value}, field)

    def test_ids_beyond_the_vocabulary(self):
        for body in ({"prompt": [[10**8]]}, {"logit_bias": {"100000000": 1}}, {"stop_token_ids": [10**8]}):
            self.refuse(body)

    def test_neutral_values_of_known_fields_pass(self):
        self.server.json("POST", "/v1/completions", {
            "model": "demo", "prompt": "x", "max_tokens": 1, "best_of": 1, "suffix": None, "stop": None,
            "response_format": {"type": "text"}, "logit_bias": {}, "user": "u", "n": 1, "seed": None,
            "guided_json": None, "use_beam_search": False, "unheard_of": {"a": 1}})

    def test_json_that_is_not(self):
        for body in (b"", b"{", b"[]", b"null", b'{"prompt": "x"} trailing', b'{"prompt": 1e400}', b"\xff\xfe{}",
                     b'{"prompt": "\\ud800"}', b'{"a":' * 3000 + b"1" + b"}" * 3000,
                     b'{"prompt": "\xc3\x28"}'):
            with self.subTest(body=body[:30]):
                error = self.refuse(body)
                self.assertNotIn("parse_error", error["message"])

    def test_too_long_says_the_real_numbers(self):
        error = self.refuse({"prompt": [[5] * 4000], "max_tokens": 200})
        self.assertEqual(error["code"], "context_length_exceeded")
        self.assertIn("4096", error["message"])
        self.assertIn("4200", error["message"])

    def test_too_long_by_far_is_refused_without_encoding(self):
        # A text is known to be too long where no tokens of the vocabulary could be so few.
        huge = "x" * (8 << 20)
        for path, body in (("/v1/completions", {"prompt": huge}), ("/v1/completions", {"prompt": ["x"] * 3 + [huge]}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": huge[:4 << 20]}]})):
            error = self.refuse(body, path=path)
            self.assertEqual(error["code"], "context_length_exceeded")
            self.assertIn("4096", error["message"])
            self.assertIn("at least", error["message"])
        tokens = self.server.json("POST", "/tokenize", {"prompt": "x" * (4 << 20)})
        self.assertGreater(tokens["count"], 4096)

    def test_http_that_is_not(self):
        for data in (b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
                     b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n\r\n",
                     b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n"):
            with self.subTest(data=data[:60]):
                answer = self.server.raw(data)
                self.assertRegex(answer[:12], rb"^(HTTP/1\.1 4\d\d)?")
                self.assertNotIn(b" 200 ", answer[:20])
        self.assertEqual(self.server.request("GET", "/health").status, 200)

    def test_compressed_bodies_are_refused(self):
        answer = self.server.request("POST", "/v1/completions", b"x", {"content-encoding": "gzip"})
        self.assertEqual(answer.status, 415)

    def test_routes_and_methods(self):
        self.assertEqual(self.server.request("GET", "/nothing").status, 404)
        self.assertEqual(self.server.request("GET", "/v1/completions").status, 405)
        self.assertEqual(self.server.request("POST", "/v1/models", {}).status, 405)
        self.assertEqual(self.server.request("GET", "//v1/../v1/models").status, 404)
        self.assertEqual(self.server.request("GET", "/page/../app.cc").status, 404)

    def test_the_reason_phrase_says_something(self):
        answer = self.server.request("POST", "/v1/completions", {"model": "demo", "prompt": "x", "top_p": 2})
        self.assertIn("top_p", answer.reason)

    def test_control_characters_forge_no_log_line(self):
        self.refuse({"model": "demo\r\nINFO forged"}, "model", 404)
        self.assertFalse(any(line.startswith("INFO forged") for line in self.server.log))

    def test_a_client_that_leaves_frees_its_place(self):
        # The counter of generated tokens stands still soon after the only client has gone.
        body = json.dumps({"model": "demo", "prompt": "Once upon a time", "max_tokens": 4000, "stream": True,
                           "ignore_eos": True}).encode()
        with socket.create_connection(("127.0.0.1", self.server.port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
            self.assertIn(b"200", client.recv(200))
        deadline = time.monotonic() + 30
        while self.server.metric("vllm:num_requests_running") > 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)
        self.assertLess(self.server.metric("vllm:generation_tokens_total"), 3900)

    def test_resets_leave_nothing_behind(self):
        body = json.dumps({"model": "demo", "prompt": "x", "max_tokens": 500, "ignore_eos": True}).encode()
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body))
        for data in (head[:20], head, head + body[:10], head + body) * 25:
            client = socket.create_connection(("127.0.0.1", self.server.port))
            client.sendall(data)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            client.close()
        deadline = time.monotonic() + 60
        while self.server.metric("vllm:num_requests_running") > 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)

    def test_idle_connections_do_not_stop_health(self):
        clients = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(500)]
        try:
            self.assertEqual(self.server.request("GET", "/health").status, 200)
        finally:
            for client in clients:
                client.close()

    def test_metrics_have_vllms_names(self):
        page = self.server.request("GET", "/metrics").body.decode()
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                     "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
                     "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
                     "vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket",
                     "vllm:inter_token_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_sum",
                     "vllm:request_queue_time_seconds_count", "vllm:iteration_tokens_total_bucket"):
            self.assertTrue(name in page, name)


class Browsers(unittest.TestCase):
    """What a page of some site can make its visitor's browser send to a server on the same machine."""

    ASK = json.dumps({"model": "demo", "prompt": "x", "max_tokens": 1})

    def post(self, server, path="/v1/completions", **headers):
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        return server.raw(f"POST {path} HTTP/1.1\r\n{head}Connection: close\r\n"
                          f"Content-Length: {len(self.ASK)}\r\n\r\n{self.ASK}".encode())

    def test_only_json_for_a_name_of_this_machine_is_answered(self):
        asked = {"Host": "localhost", "Content_Type": "application/json"}
        flags = ("--allowed-hosts", "proxy.example,other.example")
        with harness.Server(harness.demo_model("gpt-oss-bf16"), *flags) as server:
            for change, status in (({}, 200), ({"Host": "Proxy.Example:443"}, 200), ({"Host": "127.0.0.1"}, 200),
                                   ({"Host": "evil.example"}, 403), ({"Host": "localhost.evil.example:8000"}, 403),
                                   ({"Content_Type": "text/plain"}, 415), ({"Content_Type": ""}, 415),
                                   ({"Content_Type": "application/x-www-form-urlencoded"}, 415)):
                for path in ("/v1/completions", "/tokenize"):
                    answer = self.post(server, path, **{**asked, **change})
                    self.assertIn(f" {status} ".encode(), answer[:14], (path, change))

    def test_a_server_on_all_addresses_answers_to_any_name(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16"), "--host", "0.0.0.0") as server:
            answer = self.post(server, Host="name.example", Content_Type="application/json")
            self.assertIn(b" 200 ", answer[:14])

    def test_an_allowed_origin_reads_answers_and_streams(self):
        page = "https://page.example"
        flags = ("--allowed-origins", json.dumps(["https://other.example", page]))
        with harness.Server(harness.demo_model("gpt-oss-bf16"), *flags, env={"ROTA_API_KEY": "key"}) as server:
            for origin, status, said in ((page, 200, page), ("https://evil.example", 403, None)):
                asking = {"origin": origin, "authorization": "Bearer key"}
                before = {"origin": origin, "access-control-request-method": "POST"}
                stream = {"model": "demo", "prompt": "x", "max_tokens": 1, "stream": True}
                answers = [server.request("OPTIONS", "/v1/chat/completions", headers=before),
                           server.request("GET", "/v1/models", headers={"origin": origin}),
                           server.request("POST", "/v1/completions", stream, asking)]
                self.assertEqual([answer.status for answer in answers], [status, 401, 200])
                for answer in answers:
                    self.assertEqual(answer.headers["access-control-allow-origin"], said)
                    self.assertIsNone(answer.headers["access-control-allow-credentials"])

    def test_a_list_that_is_none_is_refused_at_start(self):
        done = harness.rota("serve", harness.demo_model("gpt-oss-bf16"), "--allowed-origins", '["a"', check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--allowed-origins", done.stderr)


class OutOfPlaces(unittest.TestCase):
    def test_idle_connections_make_room_for_clients_that_ask(self):
        server = harness.Server(harness.demo_model("gpt-oss-bf16"))
        server.command = ["/bin/sh", "-c", 'ulimit -n 80; exec "$@"', "sh", *server.command]
        ask = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with server:
            idle = []
            try:
                for i in range(200):  # every other one has asked something and is kept alive
                    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
                    idle.append(client)
                    if i % 2:
                        client.sendall(ask)
                        self.assertIn(b" 200 ", client.recv(4096)[:14])
                self.assertEqual(server.request("GET", "/health").status, 200)
                answer = server.json("POST", "/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": 2})
                self.assertEqual(answer["usage"]["completion_tokens"], 2)
                said = [line for line in server.log if "new connections" in line]
                self.assertGreater(len(said), 0)
                self.assertLess(len(said), 20)
                idle[-1].sendall(ask)  # the latest one was kept
                self.assertIn(b" 200 ", idle[-1].recv(4096)[:14])
            finally:
                for client in idle:
                    client.close()


class Key(unittest.TestCase):
    def test_every_route_but_health_asks_for_it(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16"), env={"ROTA_API_KEY": "open sesame"}) as server:
            self.assertEqual(server.request("GET", "/health").status, 200)
            for path in ("/v1/models", "/metrics", "/nothing", "/version", "/rota/info", "/pages", "//page/chat.js"):
                self.assertEqual(server.request("GET", path).status, 401, path)
            for path in ("/", "/page/chat.js"):  # hold no secret, and ask for the key
                self.assertEqual(server.request("GET", path).status, 200, path)
            for key in ("", "open", "open sesame!", "OPEN SESAME"):
                self.assertEqual(server.request("GET", "/v1/models", headers={"authorization": "Bearer " + key}).status,
                                 401)
            self.assertEqual(server.request("GET", "/v1/models",
                                            headers={"authorization": "Bearer open sesame"}).status, 200)
            self.assertFalse(any("open sesame" in line for line in server.log))


class EngineDies(unittest.TestCase):
    def test_a_request_goes_on_with_the_next_engine(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16")) as server:
            long = {"model": "demo", "prompt": "The capital of France is", "max_tokens": 400, "temperature": 0,
                    "ignore_eos": True}
            before = server.json("POST", "/v1/completions", long)["choices"][0]["text"]
            answers = []
            waiting = threading.Thread(target=lambda: answers.append(server.request("POST", "/v1/completions", long)))
            waiting.start()
            while server.metric("vllm:num_requests_running") < 1:
                time.sleep(0.02)
            first = server.engine_pid()
            os.kill(first, signal.SIGKILL)
            waiting.join(120)
            self.assertEqual(answers[0].status, 200)
            self.assertEqual(json.loads(answers[0].body)["choices"][0]["text"], before)
            self.assertNotEqual(server.engine_pid(), first)
            self.assertEqual(server.metric("rota:engine_restarts_total"), 1)
            self.assertEqual(server.metric("rota:replayed_requests_total"), 1)
            self.assertEqual(server.request("GET", "/health").status, 200)

    def test_one_that_fails_too_often_is_given_up_and_says_so(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16"), "--max-failures", 0) as server:
            body = {"model": "demo", "prompt": "Hello", "max_tokens": 4000, "ignore_eos": True, "stream": True}
            answers = []
            waiting = threading.Thread(target=lambda: answers.append(server.request("POST", "/v1/completions", body)))
            waiting.start()
            while server.metric("vllm:num_requests_running") < 1:
                time.sleep(0.02)
            os.kill(server.engine_pid(), signal.SIGKILL)
            waiting.join(60)
            self.assertIn(b"is not started again", answers[0].body)
            self.assertTrue(answers[0].body.endswith(b"data: [DONE]\n\n"))
            self.assertEqual(server.request("GET", "/health").status, 503)

    def test_no_engine_is_left_when_the_front_dies(self):
        server = harness.Server(harness.demo_model("gpt-oss-bf16"))
        with server:
            engine = server.engine_pid()
            server.process.kill()
            deadline = time.monotonic() + 20
            while os.path.exists(f"/proc/{engine}") and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertFalse(os.path.exists(f"/proc/{engine}"))

    def test_a_second_sigterm_ends_streams_with_an_error_and_no_crash(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16")) as server:
            answers = []
            body = {"model": "demo", "prompt": "Hello", "max_tokens": 6000, "ignore_eos": True, "stream": True}
            waiting = [threading.Thread(target=lambda: answers.append(server.request("POST", "/v1/completions", body)))
                       for _ in range(3)]
            for one in waiting:
                one.start()
            while server.metric("vllm:num_requests_running") < 3:
                time.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(30), 0)
            for one in waiting:
                one.join(10)
            for answer in answers:
                self.assertIn(b'"error"', answer.body[-400:])
                self.assertTrue(answer.body.endswith(b"data: [DONE]\n\n"))

    def test_sigterm_lets_a_stream_finish(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16")) as server:
            answers = []
            body = {"model": "demo", "prompt": "Hello", "max_tokens": 200, "ignore_eos": True}
            waiting = threading.Thread(target=lambda: answers.append(server.request("POST", "/v1/completions", body)))
            waiting.start()
            while server.metric("vllm:num_requests_running") < 1:
                time.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            waiting.join(60)
            self.assertEqual(answers[0].status, 200)
            self.assertEqual(json.loads(answers[0].body)["usage"]["completion_tokens"], 200)
            self.assertEqual(server.process.wait(30), 0)


class FileShrinks(unittest.TestCase):
    """A checkpoint that is cut while it is served: the right text, or 503 when it stays cut; never other text."""
    ASK = {"model": "demo", "prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.weights = pathlib.Path(self.folder.name) / "model.safetensors"
        for file in pathlib.Path(harness.demo_model("gpt-oss-bf16")).iterdir():
            if file.name == self.weights.name:
                shutil.copyfile(file, self.weights)
            elif not file.name.startswith("."):
                os.symlink(file, pathlib.Path(self.folder.name) / file.name)

    def tearDown(self):
        self.folder.cleanup()

    def ask(self, server):
        answer = server.request("POST", "/v1/completions", self.ASK)
        self.assertIn(answer.status, (200, 503), answer.body)
        if answer.status == 503:
            self.assertIn("Retry-After", answer.headers)
            return None
        return json.loads(answer.body)["choices"][0]["text"]

    def wait_for_line(self, server, text):
        deadline = time.monotonic() + 120
        while not any(text in line for line in server.log):
            self.assertLess(time.monotonic(), deadline, "".join(server.log))
            time.sleep(0.02)

    def test_it_comes_back_with_the_file(self):
        whole = self.weights.read_bytes()
        # The smallest cut leaves every page in place: nothing but the file's size tells.
        for cut in (1, len(whole) // 2):
            with self.subTest(cut=cut), harness.Server(self.folder.name) as server:
                before = self.ask(server)
                os.truncate(self.weights, len(whole) - cut)
                answers = []
                waiting = threading.Thread(target=lambda: answers.append(self.ask(server)))
                waiting.start()
                self.wait_for_line(server, "became shorter")
                with self.weights.open("r+b") as file:
                    file.seek(len(whole) - cut)
                    file.write(whole[len(whole) - cut:])
                waiting.join(120)
                self.assertEqual(answers, [before])
                self.assertTrue(any("model.safetensors: became shorter" in line for line in server.log))

    def test_it_is_given_up_with_the_reason(self):
        with harness.Server(self.folder.name) as server:
            self.assertIsNotNone(self.ask(server))
            os.truncate(self.weights, self.weights.stat().st_size // 2)
            self.assertIsNone(self.ask(server))  # it waits until the engine is given up
            self.wait_for_line(server, "not started again")
            answer = server.request("POST", "/v1/completions", self.ASK)
            self.assertEqual(answer.status, 503)
            self.assertIn(b"cannot be started", answer.body)
            self.assertEqual(server.request("GET", "/health").status, 503)
            self.assertIsNone(server.engine_pid())


if __name__ == "__main__":
    harness.main()
