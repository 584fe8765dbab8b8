"""The official `openai` client runs a batch: upload, create, poll, download.

    PACELINE=target/release/paceline python crates/paceline-server/tests/clients/test_batches.py

The server runs the small model under testdata on a free port of the loopback. BATCH_LINES says how
many lines the batch has.
"""

import json
import os
import subprocess
import tempfile
import threading
import time
import unittest

import openai

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../.."))
BINARY = os.environ.get("PACELINE", os.path.join(ROOT, "target/release/paceline"))
MODEL_FILE = os.path.join(ROOT, "testdata/models/smollm2-draft-16m.Q8_0.gguf")
MODEL = "small"
N_LINES = int(os.environ.get("BATCH_LINES", "24"))
#: Longer than anything here takes; a hang becomes a failure.
TIMEOUT_S = 300


class Server:
    """`paceline serve` with a data directory, ready to be asked."""

    def __init__(self, data_dir):
        arguments = ["serve", MODEL_FILE, "--port", "0", "--served-model-name", MODEL,
                     "--max-model-len", "1024", "--data-dir", data_dir]
        self.process = subprocess.Popen(
            [BINARY, *arguments], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if line.startswith("ready: "):
                url = line.split()[1]
                break
        else:
            raise RuntimeError("the server ended before it was ready")
        # Nobody else reads the log, and a full pipe would stop the server.
        self.log = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.log.start()
        self.client = openai.OpenAI(base_url=url, api_key="none", timeout=TIMEOUT_S)

    def stop(self):
        self.process.terminate()
        return self.wait()

    def kill(self):
        self.process.kill()
        self.wait()

    def wait(self):
        code = self.process.wait(TIMEOUT_S)
        self.log.join(TIMEOUT_S)
        self.process.stderr.close()
        return code


def line(index):
    """Every twelfth line cannot be run."""
    body = {"model": MODEL, "prompt": f"Number {index} is", "max_tokens": 8,
            "temperature": -1 if index % 12 == 11 else 0.7, "seed": index}
    return json.dumps({"custom_id": f"line-{index}", "method": "POST",
                       "url": "/v1/completions", "body": body}) + "\n"


def wait(client, batch_id):
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        time.sleep(0.05)
    raise TimeoutError(f"the batch is still {batch.status}")


class Batches(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.server = Server(self.dir.name)
        self.client = self.server.client

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0)

    def upload(self, text):
        return self.client.files.create(file=("in.jsonl", text.encode()), purpose="batch")

    def create(self, file, **more):
        return self.client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", **more)

    def lines(self, file_id):
        return [json.loads(text) for text in self.client.files.content(file_id).text.splitlines()]

    def test_upload_run_download(self):
        file = self.upload("".join(map(line, range(N_LINES))))
        self.assertEqual((file.object, file.purpose, file.filename),
                         ("file", "batch", "in.jsonl"))
        batch = self.create(file, metadata={"job": "numbers"})
        self.assertEqual(batch.status, "validating")
        batch = wait(self.client, batch.id)
        n_bad = N_LINES // 12
        self.assertEqual(batch.status, "completed")
        counts = batch.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed),
                         (N_LINES, N_LINES - n_bad, n_bad))
        self.assertEqual(batch.metadata, {"job": "numbers"})
        output, errors = self.lines(batch.output_file_id), self.lines(batch.error_file_id)
        self.assertEqual({entry["custom_id"] for entry in output + errors},
                         {f"line-{index}" for index in range(N_LINES)})
        self.assertEqual(len(output) + len(errors), N_LINES)
        self.assertTrue(all(entry["response"]["status_code"] == 200 for entry in output))
        self.assertTrue(all(entry["response"]["status_code"] == 400 for entry in errors))
        first = next(entry for entry in output if entry["custom_id"] == "line-0")
        alone = self.client.completions.create(**json.loads(line(0))["body"])
        self.assertEqual(first["response"]["body"]["choices"][0]["text"], alone.choices[0].text)

    def test_a_kill_in_mid_batch(self):
        batch = self.create(self.upload("".join(map(line, range(N_LINES)))))
        self.server.kill()
        self.server = Server(self.dir.name)
        self.client = self.server.client
        batch = wait(self.client, batch.id)
        self.assertEqual(batch.status, "completed")
        ids = [entry["custom_id"] for file_id in (batch.output_file_id, batch.error_file_id)
               for entry in self.lines(file_id)]
        self.assertEqual(sorted(ids), sorted(f"line-{index}" for index in range(N_LINES)))

    def test_validation_tells_lines(self):
        batch = wait(self.client, self.create(self.upload(line(0) + "{broken\n" + line(0))).id)
        self.assertEqual(batch.status, "failed")
        found = [(error.line, error.code) for error in batch.errors.data]
        self.assertEqual(found, [(2, "invalid_json_line"), (3, "duplicate_custom_id")])

    def test_lists_and_cancel(self):
        file = self.upload("".join(map(line, range(N_LINES))))
        made = [self.create(file).id for _ in range(3)]
        cancelled = self.client.batches.cancel(made[2])
        self.assertIn(cancelled.status, ("cancelling", "cancelled"))
        self.assertEqual(wait(self.client, made[2]).status, "cancelled")
        # The client follows the cursor from page to page.
        self.assertEqual([batch.id for batch in self.client.batches.list(limit=1)], made[::-1])
        for batch_id in made[:2]:
            self.assertEqual(wait(self.client, batch_id).status, "completed")
        self.assertIn(file.id, [entry.id for entry in self.client.files.list(purpose="batch")])
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(file.id)


if __name__ == "__main__":
    unittest.main()
