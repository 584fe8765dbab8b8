"""The official `openai` client, and lm-eval's calls, against the real server.

    python3 -m venv target/clients
    target/clients/bin/pip install -r crates/paceline-server/tests/clients/requirements.txt
    PACELINE=target/release/paceline target/clients/bin/python \
        crates/paceline-server/tests/clients/test_openai.py

The server runs the small model under testdata on a free port of the loopback.
"""

import base64
import json
import math
import os
import struct
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import openai

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../.."))
BINARY = os.environ.get("PACELINE", os.path.join(ROOT, "target/release/paceline"))
MODEL_FILE = os.path.join(ROOT, "testdata/models/smollm2-draft-16m.Q8_0.gguf")
MODEL = "small"
#: One key for everything, and one that may have one prompt under way.
KEYS = "all sk-all\none sk-one max_concurrent=1\n"
MESSAGES = [{"role": "user", "content": "Name a colour."}]
#: Longer than any call here takes; a hang becomes a failure.
TIMEOUT_S = 60


class Server:
    """`paceline serve`, ready to be asked."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory()
        keys = os.path.join(self.dir.name, "keys.txt")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(KEYS)
        arguments = ["serve", MODEL_FILE, "--port", "0", "--served-model-name", MODEL,
                     "--api-key-file", keys, "--max-model-len", "2048", "--pooling", "mean"]
        self.process = subprocess.Popen(
            [BINARY, *arguments], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if line.startswith("ready: "):
                self.url = line.split()[1]
                break
        else:
            raise RuntimeError("the server ended before it was ready")
        # Nobody else reads the log, and a full pipe would stop the server.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(TIMEOUT_S)
        self.dir.cleanup()
        return code

    def client(self, key="sk-all", max_retries=0, on_response=None):
        hooks = {"response": [on_response]} if on_response else {}
        return openai.OpenAI(
            base_url=self.url, api_key=key, max_retries=max_retries, timeout=TIMEOUT_S,
            http_client=openai.DefaultHttpxClient(event_hooks=hooks))

    def post(self, path, body):
        """A call without the client: what is in the bytes."""
        request = urllib.request.Request(
            self.url.removesuffix("/v1") + path, json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer sk-all"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return json.load(response)


SERVER = None


def setUpModule():
    global SERVER
    SERVER = Server()


def tearDownModule():
    code = SERVER.stop()
    if code != 0:
        raise RuntimeError(f"the server ended with {code}")


class Chat(unittest.TestCase):
    def setUp(self):
        self.client = SERVER.client()

    def test_an_answer(self):
        answer = self.client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=12, temperature=0)
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, MODEL)
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_a_stream_is_the_same_answer(self):
        ask = dict(model=MODEL, messages=MESSAGES, max_completion_tokens=12, temperature=0)
        whole = self.client.chat.completions.create(**ask)
        stream = self.client.chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual(finishes[-1], whole.choices[0].finish_reason)
        self.assertEqual(set(finishes[:-1]), {None})

    def test_the_streaming_helper(self):
        with self.client.chat.completions.stream(
                model=MODEL, messages=MESSAGES, max_completion_tokens=8, temperature=0) as stream:
            kinds = {event.type for event in stream}
            snapshot = stream.current_completion_snapshot
        self.assertIn("content.delta", kinds)
        self.assertTrue(snapshot.choices[0].message.content)

    def test_n_answers_of_one_seed(self):
        def ask():
            answer = self.client.chat.completions.create(
                model=MODEL, messages=MESSAGES, n=3, seed=5, temperature=1,
                max_completion_tokens=8)
            return [choice.message.content for choice in answer.choices]
        first = ask()
        self.assertEqual(len(first), 3)
        self.assertGreater(len(set(first)), 1)
        self.assertEqual(ask(), first)

    def test_logprobs(self):
        answer = self.client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=4, temperature=0,
            logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for token in content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)
            self.assertLessEqual(token.logprob, 0)

    def test_stop_strings_and_vllm_fields(self):
        ask = dict(model=MODEL, messages=MESSAGES, max_completion_tokens=16, temperature=0,
                   extra_body={"ignore_eos": True, "top_k": 5})
        text = self.client.chat.completions.create(**ask).choices[0].message.content
        stop = text[3:5]
        cut = self.client.chat.completions.create(**ask, stop=[stop]).choices[0]
        self.assertEqual(cut.message.content, text[:text.index(stop)])
        self.assertEqual(cut.finish_reason, "stop")


class Completions(unittest.TestCase):
    def setUp(self):
        self.client = SERVER.client()

    def test_several_prompts_keep_their_order(self):
        prompts = ["The sun is", "Water boils at", "One, two,"]
        ask = dict(model=MODEL, max_tokens=6, temperature=0)
        together = self.client.completions.create(prompt=prompts, **ask)
        self.assertEqual([choice.index for choice in together.choices], [0, 1, 2])
        for prompt, choice in zip(prompts, together.choices):
            alone = self.client.completions.create(prompt=prompt, **ask).choices[0]
            self.assertEqual(choice.text, alone.text)

    def test_a_stream_and_echo(self):
        ask = dict(model=MODEL, prompt="The sun is", max_tokens=6, temperature=0, echo=True)
        whole = self.client.completions.create(**ask).choices[0].text
        self.assertTrue(whole.startswith("The sun is"))
        pieces = [c.choices[0].text for c in self.client.completions.create(**ask, stream=True)]
        self.assertEqual("".join(pieces), whole)

    def test_logprobs_and_best_of(self):
        answer = self.client.completions.create(
            model=MODEL, prompt="The sun is", max_tokens=4, temperature=1, seed=3, n=1, best_of=3,
            logprobs=2)
        logprobs = answer.choices[0].logprobs
        n = len(logprobs.tokens)
        self.assertEqual((len(logprobs.token_logprobs), len(logprobs.top_logprobs)), (n, n))
        self.assertTrue(all(len(top) >= 2 for top in logprobs.top_logprobs))

    def test_responses(self):
        answer = self.client.responses.create(
            model=MODEL, input="Name a colour.", max_output_tokens=8, temperature=0)
        self.assertTrue(answer.output_text)
        stream = self.client.responses.create(
            model=MODEL, input="Name a colour.", max_output_tokens=8, temperature=0, stream=True)
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        self.assertEqual(text, answer.output_text)


class Models(unittest.TestCase):
    def test_the_list_and_one(self):
        client = SERVER.client()
        self.assertEqual([model.id for model in client.models.list()], [MODEL])
        self.assertEqual(client.models.retrieve(MODEL).max_model_len, 2048)

    def test_embeddings(self):
        client = SERVER.client()
        texts = ["A cat sat on the mat.", "A dog sat on the mat.", "Interest rates rose."]
        # The client itself asks for base64 unless told otherwise, and decodes it.
        answer = client.embeddings.create(model=MODEL, input=texts)
        vectors = [entry.embedding for entry in answer.data]
        self.assertEqual([entry.index for entry in answer.data], [0, 1, 2])
        for vector in vectors:
            self.assertAlmostEqual(math.fsum(x * x for x in vector), 1, places=4)
        cosine = lambda a, b: math.fsum(x * y for x, y in zip(a, b))
        self.assertGreater(cosine(vectors[0], vectors[1]), cosine(vectors[0], vectors[2]))
        alone = client.embeddings.create(
            model=MODEL, input=texts[1], encoding_format="float", dimensions=len(vectors[1]))
        self.assertEqual(in_32_bits(alone.data[0].embedding), in_32_bits(vectors[1]))
        raw = SERVER.post("/v1/embeddings", {"input": texts[1], "encoding_format": "base64"})
        n_bytes = len(base64.b64decode(raw["data"][0]["embedding"]))
        self.assertEqual(n_bytes, 4 * len(vectors[1]))
        self.assertEqual(raw["usage"]["total_tokens"], alone.usage.total_tokens)


def in_32_bits(vector):
    return struct.pack(f"<{len(vector)}f", *vector)


class Errors(unittest.TestCase):
    def create(self, client, **fields):
        ask = dict(model=MODEL, messages=MESSAGES, max_completion_tokens=4) | fields
        return client.chat.completions.create(**ask)

    def test_each_status_is_its_exception(self):
        with self.assertRaises(openai.AuthenticationError) as caught:
            self.create(SERVER.client("sk-wrong"))
        self.assertEqual(caught.exception.code, "invalid_api_key")
        client = SERVER.client()
        with self.assertRaises(openai.NotFoundError) as caught:
            self.create(client, model="other")
        self.assertEqual(caught.exception.code, "model_not_found")
        for fields, param in [({"temperature": -1}, "temperature"),
                              ({"messages": []}, "messages"),
                              ({"n": 1000}, "n"),
                              ({"stop": ["x"] * 99}, "stop")]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.create(client, **fields)
            self.assertEqual(caught.exception.param, param)
            self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            client.completions.create(model=MODEL, prompt=[1] * 5000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def hold_the_only_place(self):
        """A stream of the key that may have one; it is held while this is."""
        # Another test's may be about to leave. Sixteen answers take longer than anything here.
        stream = SERVER.client("sk-one", max_retries=20).completions.create(
            model=MODEL, prompt="Once", max_tokens=2000, n=16, stream=True,
            extra_body={"ignore_eos": True})
        next(iter(stream))
        return stream

    def test_too_many_requests(self):
        held = self.hold_the_only_place()
        with self.assertRaises(openai.RateLimitError) as caught:
            self.create(SERVER.client("sk-one"))
        self.assertEqual(caught.exception.code, "concurrency_limit")
        headers = caught.exception.response.headers
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertEqual(headers["x-should-retry"], "true")
        held.close()

    def test_a_retry_succeeds(self):
        held = self.hold_the_only_place()
        statuses = []

        def free_when_refused(response):
            statuses.append(response.status_code)
            held.close()

        client = SERVER.client("sk-one", max_retries=20, on_response=free_when_refused)
        response = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=4)
        self.assertTrue(response.parse().choices)
        # The client waited for as long as it was told to; the place was free by then, or soon.
        self.assertGreaterEqual(response.retries_taken, 1)
        self.assertEqual(statuses, [429] * response.retries_taken + [200])

    def test_errors_are_not_retried_in_vain(self):
        client = SERVER.client(max_retries=5)
        with self.assertRaises(openai.BadRequestError):
            self.create(client, temperature=-1)


class Structured(unittest.TestCase):
    """Output that follows a schema, and tools."""

    SCHEMA = {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "green"]},
                       "count": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    TOOL = {"type": "function", "function": {
        "name": "paint", "description": "Paints a wall.",
        "parameters": {"type": "object", "additionalProperties": False, "required": ["colour"],
                       "properties": {"colour": {"type": "string", "enum": ["red", "green"]}}}}}

    def create(self, **fields):
        try:
            return SERVER.client().chat.completions.create(
                model=MODEL, messages=MESSAGES, max_completion_tokens=200, temperature=0, **fields)
        except openai.BadRequestError as error:
            if "not supported" in str(error):
                self.skipTest(f"the server has no structured output yet: {error}")
            raise

    def test_json_schema(self):
        schema = {"name": "wall", "schema": self.SCHEMA, "strict": True}
        answer = self.create(response_format={"type": "json_schema", "json_schema": schema})
        value = json.loads(answer.choices[0].message.content)
        self.assertEqual(set(value), {"colour", "count"})
        self.assertIn(value["colour"], ("red", "green"))
        self.assertIn(value["count"], range(10))

    def test_json_object(self):
        choice = self.create(response_format={"type": "json_object"}).choices[0]
        if choice.finish_reason == "stop":
            self.assertIsInstance(json.loads(choice.message.content), dict)

    def test_a_bad_schema_is_a_bad_request(self):
        schema = {"name": "wall", "schema": {"type": "no such type"}}
        with self.assertRaises(openai.BadRequestError):
            self.create(response_format={"type": "json_schema", "json_schema": schema})

    def check_call(self, call):
        self.assertEqual(call.function.name, "paint")
        self.assertIn(json.loads(call.function.arguments)["colour"], ("red", "green"))

    def test_a_tool_that_must_be_called(self):
        tool = {"type": "function", "function": {"name": "paint"}}
        for choice in ("required", tool):
            answer = self.create(tools=[self.TOOL], tool_choice=choice).choices[0]
            self.assertEqual(len(answer.message.tool_calls), 1)
            self.check_call(answer.message.tool_calls[0])

    def test_a_streamed_tool_call(self):
        stream = self.create(tools=[self.TOOL], tool_choice="required", stream=True)
        name, arguments = "", ""
        for chunk in stream:
            for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        self.assertEqual(name, "paint")
        self.assertIn(json.loads(arguments)["colour"], ("red", "green"))


class LmEval(unittest.TestCase):
    """What lm-eval's `local-completions` sends for log-likelihoods, and reads of the answer."""

    def scores(self, contexts_and_continuations, max_tokens):
        prompts = [context + rest for context, rest in contexts_and_continuations]
        answer = SERVER.post("/v1/completions", {
            "model": MODEL, "prompt": prompts, "max_tokens": max_tokens, "temperature": 0,
            "logprobs": 1, "echo": True, "seed": 1234})
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        self.assertEqual(len(choices), len(prompts))
        scores = []
        for (context, rest), choice in zip(contexts_and_continuations, choices):
            logprobs = choice["logprobs"]
            tokens = logprobs["token_logprobs"]
            self.assertEqual(len(tokens), len(context) + len(rest) + max_tokens)
            self.assertIsNone(tokens[0])
            end = len(tokens) - max_tokens
            scored, top = tokens[len(context):end], logprobs["top_logprobs"][len(context):end]
            is_greedy = all(score == max(best.values()) for score, best in zip(scored, top))
            scores.append((sum(scored), is_greedy))
        return scores

    def test_log_likelihoods(self):
        tokens = lambda text: SERVER.post(
            "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        context, right, wrong = tokens("The sun rises in the"), tokens(" morning"), tokens(" xylo")
        pairs = [(context, right), (context, wrong), (tokens("One"), tokens(" two three four"))]
        scores = self.scores(pairs, 1)
        self.assertGreater(scores[0][0], scores[1][0])
        self.assertFalse(scores[1][1])
        # Batch, order and the token asked for beyond the prompt change nothing.
        self.assertEqual(self.scores(pairs[::-1], 0), scores[::-1])
        # What the model says itself is greedy, and its score the sum of its log-probabilities.
        said = SERVER.post("/v1/completions", {
            "model": MODEL, "prompt": context, "max_tokens": 3, "temperature": 0, "logprobs": 1,
            "ignore_eos": True})["choices"][0]["logprobs"]
        own = tokens("".join(said["tokens"]))
        if len(own) == 3:
            (score, is_greedy), = self.scores([(context, own)], 1)
            self.assertTrue(is_greedy)
            self.assertAlmostEqual(score, sum(said["token_logprobs"]), places=4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
