// The map of the KV memory: one cell for each block (or for several, if there are very many), in
// the colour of the sequence that holds it.

import { $, el, pen, whole } from "./dom.js";

const [FREE, CACHED, SHARED, FIRST] = [0, 1, 2, 3];
const TALLEST = 170;

export class BlockMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.kv = null;
    this.colours = [];
    this.counts = ["used", "shared", "cached", "free"].map((name) => {
      const count = el("span");
      const swatch = el("i", { className: `key-cell key-${name}` });
      $("blocks-legend").append(el("li", {}, swatch, count));
      return { name, count };
    });
  }

  /** `colourOf` gives a sequence's colour by its place in the snapshot. */
  update(snapshot, colourOf) {
    const { kv } = snapshot;
    this.kv = kv;
    this.colours = snapshot.seqs.map(colourOf);
    const nShared = nOf(kv, SHARED);
    const figures = {
      used: `${whole(kv.used)} used`,
      shared: `${whole(nShared)} shared`,
      cached: `${whole(kv.cached)} cached`,
      free: `${whole(kv.blocks - kv.used - kv.cached)} free`,
    };
    for (const { name, count } of this.counts) count.textContent = figures[name];
    const several = kv.blocks_per_cell > 1 ? ` A cell is ${kv.blocks_per_cell} blocks.` : "";
    const note = `${whole(kv.blocks)} blocks of ${kv.block_size} tokens.${several}`;
    $("blocks-note").textContent = note;
    this.canvas.ariaLabel = `${note} ${figures.used}, ${figures.cached}, ${figures.free}.`;
  }

  draw(colours) {
    if (!this.kv) return;
    const n = runs(this.kv.map).reduce((sum, [, count]) => sum + count, 0);
    const across = this.canvas.parentElement.clientWidth - 30;
    const size = Math.min(13, Math.max(4, Math.floor(Math.sqrt((across * TALLEST) / n))));
    const nColumns = Math.max(1, Math.floor(across / size));
    // With the padding below, which the style sheet sets.
    const height = `${Math.ceil(n / nColumns) * size + 14}px`;
    if (this.canvas.style.height !== height) this.canvas.style.height = height;
    const { ctx } = pen(this.canvas);
    let place = 0;
    for (const [value, count] of runs(this.kv.map)) {
      for (let i = 0; i < count; i += 1, place += 1) {
        const x = (place % nColumns) * size;
        const y = Math.floor(place / nColumns) * size;
        this.drawCell(ctx, colours, value, { x, y, side: size - (size > 5 ? 2 : 1) });
      }
    }
  }

  drawCell(ctx, colours, value, { x, y, side }) {
    if (value === CACHED && side > 4) {
      ctx.strokeStyle = colours.cached;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(x + 0.75, y + 0.75, side - 1.5, side - 1.5);
      return;
    }
    if (value === FREE) ctx.fillStyle = colours.free;
    else if (value === CACHED) ctx.fillStyle = colours.cached;
    else if (value === SHARED) ctx.fillStyle = colours.shared;
    else ctx.fillStyle = colours.lanes[this.colours[value - FIRST] ?? 0];
    ctx.fillRect(x, y, side, side);
  }
}

function runs(map) {
  return Array.from({ length: map.length / 2 }, (_, i) => [map[2 * i], map[2 * i + 1]]);
}

/** Cells with this value; with one block a cell, blocks. */
function nOf(kv, wanted) {
  return runs(kv.map).reduce((sum, [value, n]) => sum + (value === wanted ? n : 0), 0);
}
