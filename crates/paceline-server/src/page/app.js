// Joins the playground, the live view and the server.

import { model, readKey, watch, writeKey } from "./api.js";
import { BlockMap } from "./blocks.js";
import { $, duration, el, readColours, whole } from "./dom.js";
import { Figures } from "./figures.js";
import { Lanes } from "./lanes.js";
import { Playground } from "./playground.js";

const MOST_TABLE_ROWS = 64;

const lanes = new Lanes($("lanes"));
const blocks = new BlockMap($("blocks"));
const figures = new Figures();
const playground = new Playground({
  onError: (error) => { if (error.status === 401) askForKey(); },
  colour: (requestId, place) => lanes.ownColour(requestId, place),
});

let colours = readColours();
let isChanged = true;
let lastFrame = 0;
let reconnect = () => {};

function frame(now) {
  const isMoving = lanes.advance(now - lastFrame);
  lastFrame = now;
  if (isMoving || isChanged) lanes.draw(colours);
  if (isChanged) blocks.draw(colours);
  if (isChanged || figures.isStale) figures.draw(colours);
  isChanged = false;
  requestAnimationFrame(frame);
}

function showSnapshot(snapshot) {
  lanes.update(snapshot);
  blocks.update(snapshot, (seq) => lanes.colourOf(seq));
  figures.update(snapshot);
  playground.paint();
  showTable(snapshot.seqs);
  const ms = lanes.steps.at(-1)?.ms;
  const step = ms ? `step ${whole(snapshot.step)} · ${duration(ms).join(" ")}` : "";
  $("step-note").textContent = step;
  isChanged = true;
}

function showTable(seqs) {
  if (!$("rows").closest("details").open) return;
  const rows = seqs.slice(0, MOST_TABLE_ROWS).map((seq) => {
    const name = seq.index ? `#${seq.id}.${seq.index}` : `#${seq.id}`;
    const cells = [name, seq.phase, `${seq.prompt_done} of ${seq.prompt_total}`,
      `${seq.new_tokens} of ${seq.max_tokens}`, seq.blocks];
    return el("tr", {}, ...cells.map((text) => el("td", { textContent: text })));
  });
  $("rows").replaceChildren(...rows);
}

function setStatus(state, text) {
  if ($("status").textContent === text) return;
  $("status").dataset.state = state;
  $("status").textContent = text;
}

async function showModel() {
  try {
    const { id, max_model_len } = await model();
    $("model").textContent = `${id} · context ${whole(max_model_len)}`;
    document.title = `${id} · Paceline`;
  } catch {
    $("model").textContent = "";
  }
}

function onTrouble(error) {
  if (error?.status === 401) {
    setStatus("bad", "API key needed");
    askForKey();
  } else if (error?.status === 503) {
    setStatus("wait", error.message.includes("loading") ? "Loading the model" : "Shutting down");
  } else if (error?.status === 429) {
    setStatus("wait", "Too many watch; playground only");
  } else {
    setStatus("bad", "No connection");
  }
}

function askForKey() {
  if ($("key-form").hidden) toggleKey();
}

function toggleKey() {
  const isHidden = !$("key-form").hidden;
  $("key-form").hidden = isHidden;
  $("key-button").ariaExpanded = String(!isHidden);
  if (!isHidden) $("key").focus();
}

function listen() {
  $("key").value = readKey();
  $("key-button").addEventListener("click", toggleKey);
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    writeKey($("key").value.trim());
    toggleKey();
    reconnect();
  });
  const redraw = () => {
    colours = readColours();
    isChanged = true;
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);
}

listen();
requestAnimationFrame(frame);
watch({
  onOpen: () => {
    setStatus("good", "Ready");
    showModel();
  },
  onSnapshot: showSnapshot,
  onTrouble,
  restart: (stop) => { reconnect = stop; },
});
