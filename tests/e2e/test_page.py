"""The page in a real browser: a message is sent, the streamed answer is seen, each token shows its experts."""
import contextlib
import http.server
import json
import os
import re
import shutil
import tempfile
import threading
import unittest

import harness
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait


# What a page can do to the server at arguments[0]: which requests came back with an answer of the model.
FROM_ELSEWHERE = """
const [url, done] = arguments;
const body = JSON.stringify({model: 'demo', prompt: 'Hello', max_tokens: 1});
const works = (path, options) => fetch(url + path, options).then(answer => answer.ok, () => false);
const post = (headers, content) => works('/v1/completions', {method: 'POST', headers, body: content});
(async () => done({
  read: await works('/v1/models', {}),
  json: await post({'content-type': 'application/json', 'x-stainless-lang': 'js'}, body),
  text: await post({'content-type': 'text/plain'}, body),
  untyped: await post({}, new Blob([body])),
}))();
"""


@contextlib.contextmanager
def elsewhere():
    """A web site of its own; its origin."""
    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{site.server_port}"
        finally:
            site.shutdown()
            thread.join()


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-dev-shm-usage", "--window-size=1360,860",
                 "--user-data-dir=" + tempfile.mkdtemp(prefix="rota-page-")):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def ask(driver, server, text):
    """Opens the page, sends a message once the engine is ready; returns the wait to go on with."""
    driver.get(server.url + "/")
    wait = WebDriverWait(driver, 60)
    wait.until(lambda d: "experts" in d.find_element(By.ID, "model").text)
    question = driver.find_element(By.ID, "question")
    question.send_keys(text)
    question.send_keys(Keys.ENTER)
    return wait


class Page(unittest.TestCase):
    def test_a_message_is_answered_and_tokens_show_their_experts(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16")) as server:
            driver = browser()
            try:
                wait = ask(driver, server, "What is the capital of France?")
                wait.until(lambda d: d.find_elements(By.CSS_SELECTOR, ".message.assistant[data-done]"))
                answer = driver.find_element(By.CSS_SELECTOR, ".message.assistant")
                self.assertIn("Paris", answer.text)
                tokens = answer.find_elements(By.CSS_SELECTOR, ".token")
                self.assertGreater(len(tokens), 3)
                webdriver.ActionChains(driver).move_to_element(tokens[3]).perform()
                wait.until(lambda d: "is served by experts" in d.find_element(By.ID, "caption").text)
                wait.until(lambda d: d.execute_script(
                    "return new Promise(done => setTimeout(() => done(true), 900))"))
                harness.OUTPUT.mkdir(parents=True, exist_ok=True)
                picture = os.environ.get("ROTA_SCREENSHOT", str(harness.OUTPUT / "page.png"))
                self.assertTrue(driver.save_screenshot(picture))
                faults = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
                self.assertEqual(faults, [])
            finally:
                driver.quit()

    def test_ranks_show_how_much_each_has_done(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16"), "-dp", 2, "-ep", "--enable-eplb",
                            "--num-redundant-experts", 2) as server:
            driver = browser()
            try:
                wait = ask(driver, server, "What is the capital of France?")
                wait.until(lambda d: "% of the work" in d.find_element(By.ID, "rank-list").text)
                bars = driver.find_element(By.ID, "rank-list").text
                self.assertIn("rank 0 on", bars)
                self.assertIn("rank 1 on", bars)
                self.assertIn("moves so far", driver.find_element(By.ID, "balance").text)
                self.assertRegex(bars, r"experts [\d–, ]+ in layer \d+")
                wait.until(lambda d: re.search(r"\d \(ranks? \d( and \d)?\)", d.find_element(By.ID, "caption").text))
            finally:
                driver.quit()

    def test_a_server_with_a_key_asks_for_it_once(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16"), env={"ROTA_API_KEY": "open sesamé"}) as server:
            driver = browser()
            try:
                driver.get(server.url + "/")
                wait = WebDriverWait(driver, 60)
                for key, said in (("", "asks for a key"), ("wrong", "not the key")):
                    if key:
                        driver.find_element(By.ID, "key").send_keys(key, Keys.ENTER)
                    wait.until(lambda d: said in d.find_element(By.ID, "status").text)
                driver.find_element(By.ID, "key").send_keys("open sesamé", Keys.ENTER)
                for _ in range(2):  # the second time it is known
                    wait = ask(driver, server, "What is the capital of France?")
                    wait.until(lambda d: d.find_elements(By.CSS_SELECTOR, ".message.assistant[data-done]"))
                    self.assertIn("Paris", driver.find_element(By.CSS_SELECTOR, ".message.assistant").text)
                self.assertFalse(driver.find_element(By.ID, "unlock").is_displayed())
                self.assertEqual(driver.execute_script("return localStorage.length + document.cookie.length"), 0)
            finally:
                driver.quit()

    def test_a_page_of_another_origin_gets_nothing_unless_it_is_allowed(self):
        with elsewhere() as origin:
            for flags, allowed in (((), False), (("--allowed-origins", json.dumps([origin])), True)):
                with harness.Server(harness.demo_model("gpt-oss-bf16"), *flags) as server:
                    driver = browser()
                    try:
                        driver.get(origin)
                        self.assertEqual(driver.execute_async_script(FROM_ELSEWHERE, server.url), {
                            "read": allowed, "json": allowed, "text": False, "untyped": False})
                    finally:
                        driver.quit()
                    # What a browser sends without asking first was refused, not only kept from the page.
                    lines = server.request("GET", "/metrics").body.decode().splitlines()
                    self.assertIn('rota:http_responses_total{status="415"} 2', lines)
                    finished = [float(line.rsplit(" ", 1)[1]) for line in lines
                                if line.startswith("vllm:request_success_total{")]
                    self.assertEqual(sum(finished), 1 if allowed else 0)

    def test_model_output_and_questions_are_never_markup(self):
        with harness.Server(harness.demo_model("gpt-oss-bf16")) as server:
            driver = browser()
            try:
                wait = ask(driver, server, "<img src=x onerror=document.title='taken'><b>bold</b>")
                wait.until(lambda d: d.find_elements(By.CSS_SELECTOR, ".message.assistant .token"))
                driver.execute_script("document.getElementById('stop').click()")  # it may have ended by itself
                wait.until(lambda d: d.find_elements(By.CSS_SELECTOR, ".message.assistant[data-done]"))
                self.assertEqual(driver.find_elements(By.CSS_SELECTOR, ".message img, .message b"), [])
                self.assertEqual(driver.title, "rota")
            finally:
                driver.quit()


if __name__ == "__main__":
    harness.main()
