"""A completion that is on its way, in a thread of its own, and what was said of it so far.

    asked = Asked(server, {"model": "demo", "prompt": [1, 2], "stream": True, "logprobs": 1})
    asked.tokens                                  # grows while it is a stream
    asked.join(); asked.said()                    # all that a client can compare
"""
import http.client
import json
import socket
import threading

PATIENCE = 300  # seconds: reaching it means that something hangs


class Asked(threading.Thread):
    def __init__(self, server, body, leave_after=None, leave_within=PATIENCE):
        """leave_after: tokens of a stream after which the client disconnects; leave_within: seconds of silence."""
        super().__init__(daemon=True)
        self.port, self.body = server.port, body
        self.leave_after, self.leave_within = leave_after, leave_within
        self.text, self.tokens, self.logprobs, self.ends, self.status = "", [], [], [], None
        self.left = False
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.leave_within)
        try:
            connection.request("POST", "/v1/completions", json.dumps(self.body), {"content-type": "application/json"})
            answer = connection.getresponse()
            self.status = answer.status
            if self.body.get("stream") and answer.status == 200:
                self.read_stream(answer)
            else:
                self.add(json.loads(answer.read()))
        except socket.timeout:
            self.left = True
        finally:
            connection.close()

    def read_stream(self, answer):
        for line in answer:
            if line.startswith(b"data: {"):
                self.add(json.loads(line[len(b"data: "):]))
            if self.leave_after is not None and len(self.tokens) >= self.leave_after:
                self.left = True
                return

    def add(self, event):
        for choice in event.get("choices", [{"text": json.dumps(event), "finish_reason": "error"}]):
            self.text += choice["text"]
            if choice.get("logprobs"):
                self.tokens += choice["logprobs"]["tokens"]
                self.logprobs += choice["logprobs"]["token_logprobs"]
            if choice["finish_reason"]:
                self.ends.append(choice["finish_reason"])

    def said(self):
        return self.status, self.text, self.tokens, self.logprobs, self.ends
