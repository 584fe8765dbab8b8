// The playground: a chat, or many prompts side by side, streamed as they come.

import { batch, chat, tokenize } from "./api.js";
import { $, copy, duration, el, whole } from "./dom.js";

const MODES = {
  chat: {
    label: "Message",
    lead: "Ask the model something. Its sequence joins the engine’s steps on the other side.",
    hint: "Enter sends, Shift+Enter starts a line, Esc stops.",
    send: "Send",
    examples: ["What is gravity?", "Write a haiku about cycling.", "Explain rain to a child."],
  },
  many: {
    label: "Prompts, one on each line",
    lead: "Every line is a prompt. They run as one batch and stream side by side; none of them "
      + "changes the others’ answers.",
    hint: "Ctrl+Enter runs all lines, Esc stops.",
    send: "Run all",
    examples: [[
      "Why is the sky blue?",
      "Name three uses of copper.",
      "Write a haiku about cycling.",
      "What is a prime number?",
      "Explain rain to a child.",
      "How does a sail work?",
    ].join("\n")],
  },
};

const newId = () => `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

/** One answer on the screen: its text, what is known of it, and a way to copy it. */
class Answer {
  constructor(node) {
    this.node = node;
    this.text = el("div", { className: "text" });
    this.facts = el("span", { textContent: "waiting" });
    this.copy = el("button", { type: "button", className: "quiet", textContent: "Copy" });
    this.copy.hidden = true;
    this.copy.addEventListener("click", () => this.copied());
    this.node.append(this.text, el("div", { className: "meta" }, this.facts, this.copy));
    this.node.classList.add("live");
    this.node.ariaBusy = "true";
    this.sent = performance.now();
    this.nTokens = 0;
  }

  add(text) {
    this.first ??= performance.now();
    this.nTokens += 1;
    const isAtEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 24;
    this.text.append(text);
    if (isAtEnd) this.text.scrollTop = this.text.scrollHeight;
    this.facts.textContent = `${this.nTokens} tokens`;
  }

  mark(colour) {
    if (colour === null || this.node.dataset.lane) return;
    this.node.dataset.lane = colour;
    this.node.style.setProperty("--mark", `var(--lane-${colour})`);
  }

  end(reason, nTokens = this.nTokens) {
    if (!this.node.classList.contains("live")) return;
    this.node.classList.remove("live");
    this.node.ariaBusy = "false";
    this.copy.hidden = !this.text.textContent;
    const facts = [`${whole(nTokens)} tokens`];
    if (this.first) {
      const seconds = (performance.now() - this.first) / 1000;
      facts.push(`first after ${duration(this.first - this.sent).join(" ")}`);
      if (nTokens > 1 && seconds > 0) facts.push(`${whole((nTokens - 1) / seconds)} tok/s`);
    }
    this.facts.textContent = [...facts, reason].join(" · ");
  }

  fail(error) {
    const isStopped = error.name === "AbortError";
    this.end(isStopped ? "stopped" : "failed");
    if (isStopped) return;
    this.facts.className = "problem";
    this.facts.setAttribute("role", "alert");
    this.facts.textContent = error.message;
  }

  async copied() {
    await copy(this.text.textContent);
    this.copy.textContent = "Copied";
    setTimeout(() => { this.copy.textContent = "Copy"; }, 1500);
  }
}

export class Playground {
  /** `onError` hears what went wrong with a request; `colour` finds a sequence's lane. */
  constructor({ onError, colour }) {
    this.onError = onError;
    this.colour = colour;
    this.mode = "chat";
    this.drafts = { chat: "", many: MODES.many.examples[0] };
    this.messages = [];
    this.answers = new Map();
    this.listen();
    this.show();
  }

  listen() {
    for (const radio of document.getElementsByName("mode")) {
      radio.addEventListener("change", () => this.turn(radio.value));
    }
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    $("stop").addEventListener("click", () => this.stop());
    $("clear").addEventListener("click", () => this.clear());
    $("prompt").addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
  }

  press(event) {
    if (event.key !== "Enter" || event.isComposing) return;
    const isSend = this.mode === "chat" ? !event.shiftKey : event.ctrlKey || event.metaKey;
    if (!isSend) return;
    event.preventDefault();
    this.send();
  }

  turn(mode) {
    this.drafts[this.mode] = $("prompt").value;
    this.mode = mode;
    this.show();
  }

  show() {
    const mode = MODES[this.mode];
    $("prompt").value = this.drafts[this.mode];
    $("prompt").rows = this.mode === "chat" ? 3 : 5;
    $("prompt-label").textContent = mode.label;
    $("hint").textContent = mode.hint;
    $("send").textContent = mode.send;
    $("empty-lead").textContent = mode.lead;
    $("examples").replaceChildren(...mode.examples.map((text) => this.example(text)));
    $("log").hidden = this.mode !== "chat";
    $("cards").hidden = this.mode !== "many";
    this.showEmpty();
  }

  example(text) {
    const lines = text.split("\n").length;
    const label = lines > 1 ? `${lines} example prompts` : text;
    const button = el("button", { type: "button", textContent: label });
    button.addEventListener("click", () => {
      $("prompt").value = text;
      $("prompt").focus();
    });
    return button;
  }

  showEmpty() {
    const list = this.mode === "chat" ? $("log") : $("cards");
    $("empty").hidden = list.children.length > 0;
  }

  clear() {
    this.stop();
    if (this.mode === "chat") this.messages = [];
    (this.mode === "chat" ? $("log") : $("cards")).replaceChildren();
    this.showEmpty();
    $("prompt").focus();
  }

  stop() {
    this.controller?.abort();
  }

  /** Colours each answer like its lane. */
  paint() {
    for (const [answer, [id, place]] of this.answers) answer.mark(this.colour(id, place));
  }

  async send() {
    const text = $("prompt").value.trim();
    if (!text || this.controller) return;
    this.controller = new AbortController();
    $("stop").disabled = false;
    $("send").disabled = true;
    try {
      await (this.mode === "chat" ? this.sendChat(text) : this.sendMany(text));
    } finally {
      this.controller = null;
      this.answers.clear();
      $("stop").disabled = true;
      $("send").disabled = false;
    }
  }

  async sendChat(text) {
    const requestId = newId();
    $("prompt").value = "";
    this.messages.push({ role: "user", content: text });
    const said = el("li", { className: "turn user" }, el("div", { className: "text" }, text));
    const node = el("li", { className: "turn assistant" });
    $("log").append(said, node);
    const answer = new Answer(node);
    this.answers.set(answer, [requestId, 0]);
    this.showEmpty();
    const pane = $("answers");
    pane.scrollTop = pane.scrollHeight;
    try {
      await this.streamChat(answer, requestId);
    } catch (error) {
      answer.fail(error);
      this.onError(error);
    }
    const content = answer.text.textContent;
    if (content) this.messages.push({ role: "assistant", content });
    // What was never answered is not part of the conversation.
    else this.messages.pop();
  }

  async streamChat(answer, requestId) {
    const { signal } = this.controller;
    const pane = $("answers");
    const [messages, sampling] = [[...system(), ...this.messages], readSampling()];
    let finish = "";
    let nTokens;
    for await (const piece of chat(messages, sampling, { signal, requestId })) {
      const isAtEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 48;
      if (piece.text) answer.add(piece.text);
      if (piece.finish) finish = piece.finish;
      if (piece.usage) nTokens = piece.usage.completion_tokens;
      if (isAtEnd) pane.scrollTop = pane.scrollHeight;
    }
    answer.end(finish, nTokens);
  }

  async sendMany(text) {
    const requestId = newId();
    const prompts = text.split("\n").map((line) => line.trim()).filter(Boolean);
    const answers = prompts.map((prompt, place) => {
      const title = el("h3", { textContent: prompt, title: prompt });
      const answer = new Answer(el("article", { className: "card" }, title));
      this.answers.set(answer, [requestId, place]);
      return answer;
    });
    $("cards").replaceChildren(...answers.map((answer) => answer.node));
    this.showEmpty();
    try {
      await this.streamMany(answers, prompts, requestId);
    } catch (error) {
      for (const answer of answers) {
        if (answer.node.classList.contains("live")) answer.fail(error);
      }
      this.onError(error);
    }
  }

  async streamMany(answers, prompts, requestId) {
    const { signal } = this.controller;
    const ask = (content) => tokenize([...system(), { role: "user", content }], signal);
    const inputs = $("template").checked ? await Promise.all(prompts.map(ask)) : prompts;
    for await (const piece of batch(inputs, readSampling(), { signal, requestId })) {
      const answer = answers[piece.index];
      if (piece.text) answer.add(piece.text);
      if (piece.finish_reason) answer.end(piece.finish_reason, piece.tokens_generated);
    }
  }
}

function system() {
  const content = $("system").value.trim();
  return content ? [{ role: "system", content }] : [];
}

/** The fields that say something; what is left out is the server's choice. */
function readSampling() {
  const sampling = {};
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    const value = $(name).valueAsNumber;
    if (!Number.isNaN(value)) sampling[name] = value;
  }
  if ($("stop_at").value) sampling.stop = $("stop_at").value;
  return sampling;
}
