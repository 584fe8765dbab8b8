"""A headless Chromium, driven through the DevTools protocol on a pipe. Standard library only."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# Far longer than anything takes here, even on a machine that others use; a hang becomes a failure.
PATIENCE_S = 300

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]

# Containers often have too little shared memory; temporary files do as well, but can run out.
ROOMY_BYTES = 256 << 20


def memory_flags():
    shared = "/dev/shm"
    is_roomy = os.path.isdir(shared) and shutil.disk_usage(shared).free > ROOMY_BYTES
    return [] if is_roomy else ["--disable-dev-shm-usage"]


class Browser:
    def __init__(self, program):
        # Its children may still write there when it has ended.
        self.profile = tempfile.TemporaryDirectory(
            prefix="page-test-", ignore_cleanup_errors=True)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        profile = f"--user-data-dir={self.profile.name}"
        command = [program, *FLAGS, *memory_flags(), profile, "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=[theirs_in, theirs_out],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = ours_in, ours_out
        self.rest = b""
        self.last_id = 0
        self.listeners = []

    def page(self):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attach = {"targetId": target, "flatten": True}
        return Page(self, self.call("Target.attachToTarget", attach)["sessionId"])

    def call(self, method, params=None, session=None):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            for listener in self.listeners:
                listener(answer)

    def read(self):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.input], [], [], PATIENCE_S)
            assert ready, "the browser has stopped answering"
            piece = os.read(self.input, 1 << 20)
            assert piece, "the browser has ended"
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.profile.cleanup()


class Page:
    """One tab. Keeps what went wrong in it, and every address it asked for."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.problems, self.addresses = [], []
        browser.listeners.append(self.hear)
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")

    def call(self, method, params=None):
        return self.browser.call(method, params, self.session)

    def hear(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.addresses.append(params["request"]["url"])

    def screen(self, width, height, dark=False, mobile=False):
        scale = 2 if mobile else 1
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, address):
        self.call("Page.navigate", {"url": address})
        self.wait("document.readyState === 'complete'")

    def get(self, expression):
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", params)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, expression):
        """Until it is true."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            value = self.get(expression)
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}; problems: {self.problems}")

    def type(self, text):
        self.call("Input.insertText", {"text": text})

    def press(self, key, code, control=False):
        """One key: its name, and the number Windows gave it."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        event["modifiers"] = 2 if control else 0
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", **event, **text})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def shoot(self, path):
        kind = path.suffix.lstrip(".")
        params = {"format": kind, **({"quality": 90} if kind == "webp" else {})}
        picture = base64.b64decode(self.call("Page.captureScreenshot", params)["data"])
        path.write_bytes(picture)
