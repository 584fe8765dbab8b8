// The lanes: one row for each sequence, one column for each step of the engine. What a sequence had
// of a step is drawn there: a tall cell for a chunk of its prompt, a flat one for a single token.
// A row is taken over when its sequence has left.

import { N_COLOURS, pen, whole } from "./dom.js";

const KEPT_STEPS = 400;
const MOST_ROWS = 48;
const LEAST_ROWS = 8;
const STRIP = 38;
const EASE_MS = 140;

const keyOf = (id, index) => `${id}.${index}`;
const clamp = (low, value, high) => Math.min(high, Math.max(low, value));

export class Lanes {
  constructor(canvas) {
    this.canvas = canvas;
    this.isCalm = matchMedia("(prefers-reduced-motion: reduce)");
    this.reset();
  }

  reset() {
    this.lanes = new Map();
    this.steps = [];
    this.latest = 0;
    this.position = null;
    this.maxRows = 1;
    this.nSeen = 0;
    this.nTogether = 0;
    this.snapshot = null;
  }

  update(snapshot) {
    if (snapshot.step < this.latest) this.reset();
    this.snapshot = snapshot;
    this.maxRows = snapshot.max_rows;
    const running = new Map(snapshot.seqs.map((seq) => [keyOf(seq.id, seq.index), seq]));
    for (const lane of this.lanes.values()) lane.isAlive = running.has(lane.key);
    for (const step of snapshot.steps) this.addStep(step);
    for (const [key, seq] of running) {
      const lane = this.lanes.get(key);
      if (lane) Object.assign(lane, { seq, isAlive: true });
    }
    for (const lane of this.lanes.values()) this.place(lane);
    this.forget();
    this.tell(snapshot);
  }

  addStep([number, ms, rows]) {
    this.latest = Math.max(this.latest, number);
    this.nTogether = Math.max(this.nTogether, rows.length);
    const sum = { number, ms, prefill: 0, decode: 0 };
    for (const [id, index, count, isDecode] of rows) {
      sum[isDecode ? "decode" : "prefill"] += count;
      const lane = this.lane(id, index, number);
      lane.cells.push({ number, count, isDecode });
      lane.last = number;
    }
    this.steps.push(sum);
  }

  lane(id, index, number) {
    const key = keyOf(id, index);
    if (!this.lanes.has(key)) {
      const colour = this.nSeen++ % N_COLOURS;
      const lane = { key, id, index, colour, first: number, last: number, cells: [], row: null };
      this.lanes.set(key, Object.assign(lane, { isAlive: false, seq: null }));
    }
    return this.lanes.get(key);
  }

  /** The lowest row that nobody has at the time; a row once taken is kept. */
  place(lane) {
    const isTaken = (row) => [...this.lanes.values()].some(
      (other) => other !== lane && other.row === row
        && (other.isAlive || other.last >= lane.first) && other.first <= lane.last,
    );
    if (lane.row !== null && !(lane.isAlive && isTaken(lane.row))) return;
    lane.row = 0;
    while (isTaken(lane.row)) lane.row += 1;
  }

  forget() {
    const edge = this.latest - KEPT_STEPS;
    this.steps = this.steps.filter((step) => step.number > edge);
    for (const [key, lane] of this.lanes) {
      if (lane.cells[0].number <= edge) lane.cells = lane.cells.filter((c) => c.number > edge);
      if (!lane.cells.length && !lane.isAlive) this.lanes.delete(key);
      else if (!lane.cells.length) lane.cells.push({ number: edge, count: 0, isDecode: 1 });
    }
  }

  tell(snapshot) {
    const n = snapshot.seqs.length;
    const nPrefill = snapshot.seqs.filter((seq) => seq.phase === "prefill").length;
    this.canvas.dataset.running = n;
    this.canvas.dataset.seen = this.nSeen;
    this.canvas.dataset.together = this.nTogether;
    const label = n ? `${n} sequences running, ${nPrefill} of them computing their prompt`
      : "No sequence is running";
    if (this.canvas.ariaLabel !== label) this.canvas.ariaLabel = label;
  }

  /** The colour of a sequence, by its place in the snapshot or by who asked for it. */
  colourOf(seq) {
    return this.lanes.get(keyOf(seq.id, seq.index))?.colour ?? 0;
  }

  ownColour(requestId, prompt) {
    const seq = this.snapshot?.seqs.find((s) => s.request_id === requestId && s.prompt === prompt);
    const lane = seq && this.lanes.get(keyOf(seq.id, seq.index));
    return lane ? lane.colour : null;
  }

  /** Moves the view towards the latest step. True as long as it has some way to go. */
  advance(elapsed) {
    if (this.position === null || this.isCalm.matches) this.position = this.latest;
    const share = 1 - Math.exp(-elapsed / EASE_MS);
    this.position += (this.latest - this.position) * share;
    if (this.latest - this.position < 0.02) this.position = this.latest;
    return this.position !== this.latest;
  }

  draw(colours) {
    const { ctx, width, height } = pen(this.canvas);
    const gutter = width < 480 ? 44 : 118;
    const view = { ctx, colours, gutter, width, height, column: clamp(5, width / 96, 9) };
    view.xOf = (number) => width - ((this.position ?? 0) - number + 1) * view.column;
    ctx.font = `11px ${colours.font}`;
    ctx.textBaseline = "middle";
    this.drawStrip(view);
    this.drawRows(view);
    this.drawAxis(view);
  }

  /** Rows of each step, of those it may have; roots, because one token must show beside 500. */
  drawStrip({ ctx, colours, gutter, width, column, xOf }) {
    ctx.fillStyle = colours["ink-2"];
    ctx.fillText("rows", 0, STRIP - 14);
    ctx.fillStyle = colours["ink-3"];
    ctx.fillText(`of ${whole(this.maxRows)}`, 0, STRIP - 1);
    const tall = (rows) => Math.sqrt(rows / this.maxRows) * STRIP;
    for (const { number, prefill, decode } of this.steps) {
      const x = xOf(number);
      if (x < gutter) continue;
      const [all, low] = [tall(prefill + decode), tall(decode)];
      ctx.fillStyle = colours.cached;
      ctx.fillRect(x, STRIP + 4 - all, column - 1, all - low);
      ctx.fillStyle = colours["ink-2"];
      ctx.fillRect(x, STRIP + 4 - low, column - 1, low);
    }
    ctx.fillStyle = colours.line;
    ctx.fillRect(gutter, STRIP + 4, width - gutter, 1);
  }

  drawRows(view) {
    const top = STRIP + 14;
    const room = view.height - top - 16;
    const lanes = [...this.lanes.values()].filter((lane) => view.xOf(lane.last) > view.gutter);
    const used = lanes.reduce((most, lane) => Math.max(most, lane.row + 1), LEAST_ROWS);
    const nRows = Math.min(used, MOST_ROWS);
    const tall = clamp(4, room / nRows, 30);
    for (let row = 0; row < nRows; row += 1) {
      view.ctx.fillStyle = view.colours.line;
      const y = Math.round(top + (row + 0.5) * tall);
      view.ctx.fillRect(view.gutter, y, view.width - view.gutter, 1);
    }
    view.ctx.save();
    view.ctx.beginPath();
    view.ctx.rect(view.gutter, 0, view.width - view.gutter, view.height);
    view.ctx.clip();
    for (const lane of lanes) {
      if (lane.row < nRows) this.drawLane(view, lane, top + lane.row * tall, tall);
    }
    view.ctx.restore();
    if (tall >= 11) this.drawLabels(view, lanes, top, tall);
    const nHidden = lanes.filter((lane) => lane.isAlive && lane.row >= nRows).length;
    this.note = nHidden ? `and ${nHidden} more below` : "";
  }

  drawLane({ ctx, colours, column, gutter, xOf }, lane, y, tall) {
    const middle = y + tall / 2;
    ctx.fillStyle = colours.lanes[lane.colour];
    ctx.globalAlpha = lane.isAlive ? 1 : 0.62;
    for (const { number, count, isDecode } of lane.cells) {
      const x = xOf(number);
      if (x + column < gutter) continue;
      const share = isDecode ? 0.26 : 0.5 + 0.42 * Math.sqrt(Math.min(1, count / this.maxRows));
      const h = Math.max(2, tall * share);
      ctx.beginPath();
      ctx.roundRect(x, middle - h / 2, column - 1, h, Math.min(2, h / 2));
      ctx.fill();
    }
    ctx.globalAlpha = 1;
    if (!lane.isAlive) drawEnd(ctx, colours, xOf(lane.last) + column / 2 - 0.5, middle, lane);
  }

  drawLabels({ ctx, colours, gutter }, lanes, top, tall) {
    for (const lane of lanes.filter(({ isAlive, seq }) => isAlive && seq)) {
      const y = top + (lane.row + 0.5) * tall + 0.5;
      ctx.fillStyle = colours.lanes[lane.colour];
      ctx.fillRect(0, y - 4.5, 3, 8);
      ctx.fillStyle = colours.ink;
      const name = lane.index ? `#${lane.id}.${lane.index}` : `#${lane.id}`;
      ctx.fillText(name, 8, y);
      if (gutter < 100) continue;
      const { phase, prompt_done, prompt_total, new_tokens, max_tokens } = lane.seq;
      const text = phase === "prefill" ? `${prompt_done} of ${prompt_total}`
        : `+${new_tokens} of ${max_tokens}`;
      ctx.fillStyle = colours["ink-2"];
      ctx.textAlign = "right";
      ctx.fillText(text, gutter - 10, y);
      ctx.textAlign = "left";
    }
  }

  drawAxis({ ctx, colours, width, height, gutter }) {
    ctx.fillStyle = colours["ink-3"];
    if (this.note) ctx.fillText(this.note, gutter, height - 6);
    ctx.textAlign = "right";
    ctx.fillText(this.latest ? `step ${whole(this.latest)}` : "no step yet", width, height - 6);
    ctx.textAlign = "left";
  }
}

/** Where a sequence leaves. */
function drawEnd(ctx, colours, x, y, lane) {
  ctx.beginPath();
  ctx.arc(x, y, 3.2, 0, 2 * Math.PI);
  ctx.fillStyle = colours.panel;
  ctx.fill();
  ctx.lineWidth = 1.6;
  ctx.strokeStyle = colours.lanes[lane.colour];
  ctx.stroke();
}
