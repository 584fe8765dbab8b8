// The server's routes. Knows nothing of the page.

const KEY = "paceline-key";
const RETRY_MS = 1500;

export const readKey = () => sessionStorage.getItem(KEY) ?? "";

export function writeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** What the server answered when it was not a result. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, { body, signal, requestId } = {}) {
  const headers = {};
  const key = readKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (requestId) headers["X-Request-Id"] = requestId;
  if (body) headers["Content-Type"] = "application/json";
  const sent = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const response = await fetch(path, { ...sent, headers, signal });
  if (response.ok) return response;
  const error = await response.json().then((json) => json.error, () => null);
  throw new ApiError(response.status, error?.message ?? `the server said ${response.status}`);
}

/** The JSON of each server-sent event. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
        yield JSON.parse(line.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export async function model() {
  const { data } = await (await call("v1/models")).json();
  return data[0];
}

export async function tokenize(messages, signal) {
  const response = await call("tokenize", { body: { messages }, signal });
  return (await response.json()).tokens;
}

/** Streams one answer of a chat: `{text}` pieces, then `{finish}`, then `{usage}`. */
export async function* chat(messages, sampling, options) {
  const body = { ...sampling, messages, stream: true, stream_options: { include_usage: true } };
  const response = await call("v1/chat/completions", { body, ...options });
  for await (const event of events(response)) {
    if (event.error) throw new ApiError(500, event.error.message);
    const choice = event.choices[0];
    if (choice?.delta?.content) yield { text: choice.delta.content };
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
    if (event.usage) yield { usage: event.usage };
  }
}

/** Streams many prompts in one request, so that a browser's limit on connections does not matter.
    Events have the `index` of their prompt. */
export async function* batch(prompts, sampling, options) {
  const response = await call("generate/batch", {
    body: { ...sampling, prompts, stream: true },
    ...options,
  });
  for await (const event of events(response)) {
    if (event.error) throw new ApiError(500, event.error.message);
    if (event.index !== undefined) yield event;
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Watches the engine for ever: every snapshot, and every change of the connection. */
export async function watch({ onOpen, onSnapshot, onTrouble, restart }) {
  for (;;) {
    const controller = new AbortController();
    restart(() => controller.abort());
    try {
      const response = await call("live", { signal: controller.signal });
      onOpen();
      for await (const snapshot of events(response)) onSnapshot(snapshot);
      onTrouble(null);
    } catch (error) {
      if (!controller.signal.aborted) onTrouble(error);
    }
    if (!controller.signal.aborted) await pause(RETRY_MS);
  }
}
