// Small helpers that everything else uses. Text goes in as text, never as markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, props = {}, ...children) {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children);
  return node;
}

/** A canvas's pen in CSS pixels, with the drawing as sharp as the screen. */
export function pen(canvas) {
  const style = getComputedStyle(canvas);
  const across = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
  const down = parseFloat(style.paddingTop) + parseFloat(style.paddingBottom);
  const width = Math.max(1, canvas.clientWidth - across);
  const height = Math.max(1, canvas.clientHeight - down);
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return { ctx, width, height };
}

export const N_COLOURS = 8;

/** The colours of the scheme in use; read again when it changes. */
export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["ink", "ink-2", "ink-3", "line", "sunk", "panel", "accent"];
  const colours = Object.fromEntries(names.map((name) => [name, named(name)]));
  for (const name of ["free", "cached", "shared"]) colours[name] = named(name);
  colours.lanes = Array.from({ length: N_COLOURS }, (_, i) => named(`lane-${i}`));
  colours.font = named("sans");
  return colours;
}

export const whole = (n) => Math.round(n).toLocaleString("en");

/** Milliseconds as a person reads them. */
export function duration(ms) {
  if (!ms) return ["–", ""];
  if (ms < 10) return [ms.toFixed(1), "ms"];
  return ms < 1000 ? [ms.toFixed(0), "ms"] : [(ms / 1000).toFixed(ms < 10000 ? 2 : 1), "s"];
}

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Without a secure context there is only the old way.
  const area = el("textarea", { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
