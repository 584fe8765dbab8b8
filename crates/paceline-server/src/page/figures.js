// The figures above the lanes, and a short history of the two rates.

import { $, duration, el, pen, whole } from "./dom.js";

const SAMPLE_MS = 500;
const N_SAMPLES = 90;
const WINDOW_MS = 1200;
const REST_MS = 900;

/** A value with its unit, and below it a history, a share or a remark. */
function figure(name, below) {
  const value = el("b", { textContent: "–" });
  const unit = el("small");
  const node = el("div", { className: "figure" }, el("dt", { textContent: name }));
  node.append(el("dd", {}, value, unit), below);
  $("figures").append(node);
  return { value, unit, below };
}

const history = () => el("canvas", { ariaHidden: "true" });
const remark = () => el("dd", { className: "remark" });
const share = (name) => el("meter", { ariaLabel: `Share of ${name}`, max: 1, value: 0 });

export class Figures {
  constructor() {
    this.output = figure("Output tok/s", history());
    this.prompt = figure("Prompt tok/s", history());
    this.running = figure("Running", share("sequences that may run"));
    this.waiting = figure("Waiting", share("the queue"));
    this.first = figure("First token", remark());
    this.between = figure("Between tokens", remark());
    this.history = { output: [], prompt: [] };
    this.rates = { output: 0, prompt: 0 };
    this.marks = [];
    this.arrival = 0;
    this.isIdle = true;
    setInterval(() => this.sample(), SAMPLE_MS);
  }

  update(snapshot) {
    const { seqs, queue, totals } = snapshot;
    this.arrival = performance.now();
    this.isIdle = !seqs.length && !queue.requests;
    this.mark(snapshot.at_ms, totals.generated_tokens, totals.prompt_tokens);
    showShare(this.running, seqs.length, snapshot.max_seqs);
    showShare(this.waiting, queue.requests, queue.max_requests);
    showTimes(this.first, snapshot.ttft_ms);
    showTimes(this.between, snapshot.itl_ms);
    this.showRates();
  }

  /** Rates over the last second or so, by the engine's clock. */
  mark(at, output, prompt) {
    const last = this.marks.at(-1);
    if (last && (at < last.at || at - last.at > 4 * WINDOW_MS)) this.marks = [];
    this.marks.push({ at, output, prompt });
    while (this.marks.length > 2 && at - this.marks[1].at > WINDOW_MS) this.marks.shift();
    const first = this.marks[0];
    const seconds = (at - first.at) / 1000;
    if (seconds < 0.05) return;
    this.rates = {
      output: (output - first.output) / seconds,
      prompt: (prompt - first.prompt) / seconds,
    };
  }

  sample() {
    if (this.isIdle && performance.now() - this.arrival > REST_MS) {
      this.rates = { output: 0, prompt: 0 };
      this.marks = this.marks.slice(-1);
      this.showRates();
    }
    for (const name of ["output", "prompt"]) {
      this.history[name].push(this.rates[name]);
      if (this.history[name].length > N_SAMPLES) this.history[name].shift();
    }
    this.isStale = true;
  }

  showRates() {
    for (const name of ["output", "prompt"]) {
      show(this[name], whole(this.rates[name]), "");
    }
  }

  draw(colours) {
    this.isStale = false;
    for (const name of ["output", "prompt"]) {
      const { ctx, width, height } = pen(this[name].below);
      const values = this.history[name];
      const most = Math.max(1, ...values);
      const step = width / (N_SAMPLES - 1);
      const start = width - (values.length - 1) * step;
      const y = (value) => height - 1.5 - (value / most) * (height - 4);
      ctx.beginPath();
      values.forEach((value, i) => ctx.lineTo(start + i * step, y(value)));
      ctx.strokeStyle = name === "output" ? colours.accent : colours["ink-3"];
      ctx.lineWidth = 1.5;
      ctx.lineJoin = "round";
      ctx.stroke();
    }
  }
}

function show(tile, value, unit) {
  tile.value.textContent = value;
  tile.unit.textContent = unit;
}

function showShare(tile, n, most) {
  show(tile, whole(n), `of ${whole(most)}`);
  tile.below.value = n / Math.max(1, most);
}

function showTimes(tile, { p50, p95 }) {
  show(tile, ...duration(p50));
  tile.below.textContent = p95 ? `p95 ${duration(p95).join(" ")}` : "";
}
