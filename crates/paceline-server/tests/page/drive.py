#!/usr/bin/env python3
"""Drives the page at / in a real browser, by keyboard, against a real server.

    python3 crates/paceline-server/tests/page/drive.py target/release/paceline

Exits with 0 if everything held, and with 77 if there is no browser. Pictures go to --pictures;
those of the documents were made with `--model default --moment 300 --pictures docs/images`.
"""

import argparse
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

from browser import PATIENCE_S, Browser

ROOT = pathlib.Path(__file__).resolve().parents[4]
MODEL = ROOT / "testdata/models/smollm2-draft-16m.Q8_0.gguf"
KEY = "sk-page"
NO_BROWSER = 77
BROWSERS = ["chromium", "chromium-browser", "google-chrome"]
PROMPTS = [
    "Why is the sky blue?",
    "Name three uses of copper.",
    "Write a haiku about cycling.",
    "What is a prime number?",
    "Explain rain to a child.",
    "How does a sail work?",
]


class Server:
    def __init__(self, program, model, flags):
        command = [program, "serve", model, "--port", "0", "--api-key", KEY, *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if line.startswith("ready: "):
                self.address = line.split()[1].removesuffix("/v1")
                # Somebody must read its log, or it would wait for room to write more.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return
        raise AssertionError("the server ended before it was ready")

    def stop(self):
        """In good order, although the page still watches."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def check_headers(address):
    for path in ["/", "/page/app.js"]:
        with urllib.request.urlopen(address + path) as answer:
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';"), policy
            assert "unsafe" not in policy, policy
            assert answer.headers["x-content-type-options"] == "nosniff"
    try:
        urllib.request.urlopen(address + "/live")
        raise AssertionError("/live needs no key")
    except urllib.error.HTTPError as error:
        assert error.code == 401, error


def check_key(page, address):
    """Without the key the page asks for it; with it, it is ready."""
    page.open(address + "/")
    page.wait("document.activeElement.id === 'key'")
    assert page.get("document.getElementById('status').textContent") == "API key needed"
    # The refusal itself is an error in the browser's log, and the only one there may be.
    assert all("401" in problem for problem in page.problems), page.problems
    page.problems.clear()
    page.type(KEY)
    page.press("Enter", 13)
    page.wait("document.getElementById('status').textContent === 'Ready'")
    page.wait("document.getElementById('model').textContent.includes('context')")
    assert page.get("sessionStorage.getItem('paceline-key')") == KEY
    assert page.get("localStorage.length + document.cookie.length") == 0


def check_labels(page):
    nameless = """[...document.querySelectorAll('input, textarea, button, canvas')]
        .filter((e) => !e.ariaHidden && !e.ariaLabel && !e.labels?.length && !e.textContent.trim())
        .map((e) => e.outerHTML)"""
    assert page.get(nameless) == [], page.get(nameless)


def set_value(page, name, value):
    page.get(f"document.getElementById('{name}').value = {json.dumps(value)}")


def ask(page, text):
    page.get("document.getElementById('prompt').focus()")
    set_value(page, "prompt", "")
    page.type(text)


def check_chat(page):
    """Tokens stream in: the text is seen to grow before it ends."""
    set_value(page, "seed", "7")
    set_value(page, "max_tokens", "160")
    ask(page, "Tell me a long story about a river.")
    page.get("""(() => {
        window.lengths = new Set();
        new MutationObserver(() => {
            const live = document.querySelector('.assistant.live .text');
            if (live) lengths.add(live.textContent.length);
        }).observe(document.getElementById('log'), {childList: true, subtree: true});
    })()""")
    page.press("Enter", 13)
    page.wait("document.querySelector('.assistant:not(.live) .meta')?.textContent")
    assert page.get("lengths.size") > 3, "it did not stream"
    facts = page.get("document.querySelector('.assistant .meta').textContent")
    assert "tokens" in facts and "first after" in facts, facts
    page.wait("Number(document.getElementById('lanes').dataset.seen) >= 1")
    page.wait("document.getElementById('lanes').dataset.running === '0'")
    page.get("document.querySelector('.assistant .meta button').focus()")
    page.press("Enter", 13)
    page.wait("document.querySelector('.assistant .meta button').textContent === 'Copied'")


def turn_to_many(page):
    page.get("document.querySelector('input[name=mode]:checked').focus()")
    page.press("ArrowRight", 39)
    page.wait("!document.getElementById('cards').hidden")


def check_two_lanes(page):
    """Two prompts are two lanes of the same steps, and the cards have their colours."""
    turn_to_many(page)
    ask(page, "\n".join(PROMPTS[:2]))
    before = page.get("Number(document.getElementById('lanes').dataset.seen)")
    page.press("Enter", 13, control=True)
    page.wait(f"Number(document.getElementById('lanes').dataset.seen) >= {before + 2}")
    page.wait("document.querySelectorAll('.card:not(.live)').length === 2")
    assert page.get("Number(document.getElementById('lanes').dataset.together)") >= 2
    texts = page.get("[...document.querySelectorAll('.card .text')].map((e) => e.textContent)")
    assert all(texts), texts
    page.wait("document.getElementById('lanes').dataset.running === '0'")


def run_all(page, max_tokens):
    set_value(page, "max_tokens", str(max_tokens))
    ask(page, "\n".join(PROMPTS))
    page.press("Enter", 13, control=True)


def check_stop(page):
    """Esc ends what runs, and the engine lets go of it."""
    # More than can be said before it is heard: the browser has its cores from the engine.
    run_all(page, 8000)
    page.wait("document.querySelector('.card .text')?.textContent.length > 20")
    page.press("Escape", 27)
    page.wait("!document.querySelector('.card.live')")
    facts = page.get("[...document.querySelectorAll('.card .meta')].map((e) => e.textContent)")
    assert any("stopped" in fact for fact in facts), facts
    page.wait("document.getElementById('lanes').dataset.running === '0'")
    page.wait("document.getElementById('stop').disabled")


class Traffic:
    """Others who use the server meanwhile: prompts and answers of many lengths, a few at once."""

    def __init__(self, address, n_clients=4):
        self.address, self.is_over, self.lock = address, False, threading.Lock()
        self.random = random.Random(5)
        self.threads = [threading.Thread(target=self.ask_on) for _ in range(n_clients)]
        for thread in self.threads:
            thread.start()

    def ask_on(self):
        while not self.is_over:
            with self.lock:
                n_words = self.random.choice([20, 60, 150, 300])
                words = self.random.choices(["the", "river", "runs", "to", "sea"], k=n_words)
                max_tokens = self.random.randint(8, 60)
            body = {"prompt": " ".join(words), "max_tokens": max_tokens, "temperature": 1}
            address, data = self.address + "/v1/completions", json.dumps(body).encode()
            request = urllib.request.Request(address, data, {"Authorization": f"Bearer {KEY}"})
            urllib.request.urlopen(request, timeout=PATIENCE_S).read()

    def end(self):
        self.is_over = True
        for thread in self.threads:
            thread.join()


SCREENS = [
    ("page-light", {"width": 1440, "height": 900}),
    ("page-dark", {"width": 1440, "height": 900, "dark": True}),
    ("page-phone", {"width": 390, "height": 844, "mobile": True}),
]


def take_pictures(page, args):
    """In the middle of a batch, on each kind of screen; nothing may be cut off sideways."""
    first_text = "document.querySelector('.card .text')?.textContent"
    for name, screen in SCREENS:
        page.screen(**screen)
        set_value(page, "seed", "11")
        run_all(page, 400)
        page.wait(f"{first_text}.length > {args.moment}")
        if screen.get("mobile"):
            page.get("document.getElementById('engine').scrollIntoView()")
        page.get("new Promise((done) => setTimeout(done, 400))")
        page.shoot(args.pictures / f"{name}.{args.kind}")
        overhang = page.get("document.documentElement.scrollWidth - innerWidth")
        assert overhang <= 0, f"{name} is {overhang} pixels too wide"
        page.press("Escape", 27)
        page.wait("document.getElementById('stop').disabled")


def check_page(browser, address, args):
    page = browser.page()
    page.screen(1440, 900)
    check_key(page, address)
    check_labels(page)
    check_chat(page)
    check_two_lanes(page)
    check_stop(page)
    args.pictures.mkdir(parents=True, exist_ok=True)
    traffic = Traffic(address)
    try:
        take_pictures(page, args)
    finally:
        traffic.end()
    assert page.problems == [], page.problems
    foreign = [url for url in page.addresses if not url.startswith((address, "about:"))]
    assert foreign == [], foreign


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the paceline binary")
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--pictures", type=pathlib.Path, default=ROOT / "target/page")
    parser.add_argument("--kind", choices=["webp", "png"], default="webp")
    parser.add_argument("--moment", type=int, default=120, help="characters before a picture")
    parser.add_argument("--flags", default="--num-kv-blocks 320 --max-num-batched-tokens 128")
    args = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not program:
        print("there is no Chromium here", file=sys.stderr)
        sys.exit(NO_BROWSER)
    server = Server(args.program, args.model, args.flags.split())
    browser = Browser(program)
    try:
        check_headers(server.address)
        check_page(browser, server.address, args)
        code = server.stop()
        assert code == 0, f"the server ended with {code}"
    finally:
        browser.close()
        if server.process.poll() is None:
            server.process.kill()
    print(f"the page works; pictures are in {args.pictures}")


if __name__ == "__main__":
    main()
