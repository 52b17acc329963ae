"""The page in a real browser: a message is sent, the streamed answer is seen, each token shows its experts."""
import os
import shutil
import tempfile
import unittest

import harness
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait


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
