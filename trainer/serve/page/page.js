// The page of the inference server. Everything that it shows comes from /model and the answers.
"use strict";

const $ = (id) => document.getElementById(id);
const POLL = 3000; // Milliseconds between two looks at /model.
const RETRIES = 4; // Of a request while the server is busy or not ready.
const PEN = 0.085; // The line's width as a share of the board.
let model = null; // What /model said last.
let picture = null; // What was given last: a Blob.
let turn = 0; // Of the newest request: older answers are not shown.

// ---- the server

async function call(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers });
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  const error = new Error(content.error || `the server answered ${answer.status}`);
  error.status = answer.status;
  error.fix = content.fix || "";
  error.after = Number(answer.headers.get("Retry-After")) || 0;
  throw error;
}

// Ask until it is answered: who is told to come back later does, and who lost the connection tries.
async function ask(path, options, own, tell) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await call(path, options);
    } catch (error) {
      if (own !== turn) throw error;
      if (error.status === 401) askToken();
      const again = error.status === undefined || error.status === 429 || error.status === 503;
      if (!again || tries >= RETRIES) throw error;
      const wait = error.after || 2 ** tries;
      tell(`${words(error)} Trying again in ${wait} s …`);
      await new Promise((done) => setTimeout(done, wait * 1000));
    }
  }
}

function words(error) {
  if (error.status === undefined) return "There is no connection to the server.";
  if (error.status === 429) return "The server is busy: too many others wait.";
  const text = [error.message, error.fix].filter(Boolean).join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function state(kind, text) {
  if ($("state-text").textContent === text) return;
  $("state").className = `state ${kind}`;
  $("state-text").textContent = text;
}

async function look() {
  try {
    const found = await call("model");
    $("token-form").hidden = true;
    show(found);
  } catch (error) {
    if (error.status === 401) {
      askToken();
    } else {
      state("bad", "No connection");
      if (!model) wait("There is no connection to the server. Trying again …");
    }
  }
  setTimeout(look, POLL);
}

function wait(text) {
  $("waiting").hidden = false;
  if ($("waiting-text").textContent !== text) $("waiting-text").textContent = text;
}

function askToken() {
  state("", "Needs a token");
  $("waiting").hidden = true;
  if ($("token-form").hidden) {
    $("token-form").hidden = false;
    $("token").focus();
  }
}

$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  try {
    show(await call("model"));
    $("token-form").hidden = true;
  } catch (error) {
    state("bad", error.status === 401 ? "Wrong token" : "No connection");
    $("token").focus();
  }
});

// ---- what is served

function show(found) {
  const before = model;
  document.title = `${found.name} · inference`;
  $("name").textContent = found.name;
  if (!found.ready) {
    state("", "Not ready yet");
    wait(`The server is not ready: ${found.reason}. This page goes on by itself.`);
    return;
  }
  model = found;
  state("good", "Ready");
  $("waiting").hidden = true;
  const text = found.kind === "text";
  $("pictures").hidden = text;
  $("writing").hidden = !text;
  if (!before || before.drawn !== found.drawn) arrange(found);
  facts(found.checkpoint, found);
  if (before && before.checkpoint.name !== found.checkpoint.name) {
    $("newer").textContent = `A newer checkpoint answers from now on: step ${count(found.checkpoint.step)}.`;
    $("facts").classList.remove("fresh");
    void $("facts").offsetWidth; // Or the animation would not run again.
    $("facts").classList.add("fresh");
    if (picture && !text) classify(picture);
  }
}

function arrange(found) {
  $("tabs").hidden = !found.drawn;
  choose(found.drawn ? "draw" : "file");
  if (found.drawn) $("drop-small").textContent = "PNG, JPEG or WebP of one handwritten digit";
}

function facts(checkpoint, found) {
  $("facts").hidden = false;
  $("fact-job").textContent = checkpoint.job;
  $("fact-step").textContent = `${count(checkpoint.step)} (epoch ${checkpoint.epoch})`;
  $("fact-accuracy").textContent = checkpoint.accuracy === null ? "unknown" : percent(checkpoint.accuracy);
  $("fact-age").textContent = `${age(checkpoint.age_seconds)} ago, on ${checkpoint.host}`;
  $("fact-model").textContent = `${found.model}, ${found.precision}`;
  const gpus = [...new Set(found.gpus.map((gpu) => gpu.model))].join(", ");
  const number = found.replicas.length > 1 ? `${found.replicas.length} × ` : "";
  $("fact-where").textContent = number + (gpus || found.replicas[0].replace("cpu", "CPU"));
}

const count = (number) => number.toLocaleString("en");

function percent(share) {
  if (share > 0.9995 && share < 1) return "> 99.9 %";
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(share * 100).toFixed(1)} %`;
}

function age(seconds) {
  const units = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const [size, name] = units.find(([each]) => seconds >= each) || units[3];
  const number = Math.floor(seconds / size);
  return `${number} ${name}${number === 1 ? "" : "s"}`;
}

// ---- a picture's classes

async function classify(blob) {
  const own = stale();
  picture = blob;
  const body = new FormData();
  body.append("image", blob, "picture.png");
  try {
    const answer = await ask("predict/image", { method: "POST", body }, own, problem);
    if (own === turn) result(answer);
  } catch (error) {
    if (own === turn) problem(words(error));
  }
  if (own === turn) $("result").classList.remove("busy");
}

// What is shown, or still asked for, is of an older picture from now on.
function stale() {
  $("result").classList.add("busy");
  return (turn += 1);
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

function result(answer) {
  problem("");
  const classes = answer.predictions[0].classes;
  const [best] = classes;
  $("empty").hidden = true;
  $("result").hidden = false;
  $("best").textContent = best.class;
  $("best").parentElement.classList.toggle("long", best.class.length > 3);
  $("sure").textContent = `${percent(best.probability)} probable`;
  $("bars").replaceChildren(...classes.map(bar));
  $("timing").textContent = timing(answer);
  $("announce").textContent = `${best.class}, ${percent(best.probability)}`;
  facts(answer.checkpoint, model);
}

function timing(answer) {
  const time = answer.latency_ms;
  const shared = answer.batch_size > 1 ? ` of ${answer.batch_size}` : "";
  return `Answered in ${time.total.toFixed(1)} ms: ${time.queue.toFixed(1)} ms in the queue, ` +
    `${time.batch.toFixed(1)} ms in a batch${shared}, by step ${count(answer.checkpoint.step)}`;
}

function bar(each) {
  const row = document.createElement("li");
  const [label, track, fill, share] = ["label", "track", "fill", "share"].map((name) => {
    const part = document.createElement("span");
    part.className = name;
    return part;
  });
  label.textContent = each.class;
  share.textContent = percent(each.probability);
  fill.style.width = `${Math.max(each.probability * 100, 0.5)}%`;
  track.append(fill);
  row.append(label, track, share);
  return row;
}

function reset() {
  turn += 1;
  picture = null;
  problem("");
  $("empty").hidden = false;
  $("result").hidden = true;
}

// ---- a file: chosen, dropped or pasted

function take(file) {
  if (!file) return;
  choose("file");
  const preview = $("preview");
  if (preview.src) URL.revokeObjectURL(preview.src);
  preview.src = URL.createObjectURL(file);
  preview.alt = `Your picture: ${file.name || "pasted"}`;
  preview.hidden = false;
  $("drop-text").querySelector("strong").textContent = "Choose another";
  if (file.size > model.limits.body - 4096) {
    $("empty").hidden = true;
    $("result").hidden = true;
    problem(`The file is too large: ${Math.ceil(file.size / 2 ** 20)} MB, and ${Math.floor(model.limits.body / 2 ** 20)} MB may be.`);
    return;
  }
  classify(file);
}

$("file").addEventListener("change", () => take($("file").files[0]));
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((each) => each.type.startsWith("image/"));
  if (file && model && model.kind === "image") take(file);
});
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop" && model && model.kind === "image") take(event.dataTransfer.files[0]);
  });
}

// ---- tabs

function choose(name) {
  for (const each of ["draw", "file"]) {
    const chosen = each === name;
    $(`tab-${each}`).setAttribute("aria-selected", chosen);
    $(`tab-${each}`).tabIndex = chosen ? 0 : -1;
    $(`panel-${each}`).hidden = !chosen;
  }
}
for (const [name, other] of [["draw", "file"], ["file", "draw"]]) {
  $(`tab-${name}`).addEventListener("click", () => choose(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    choose(other);
    $(`tab-${other}`).focus();
  });
}

// ---- the board: white on black, as the handwriting that the model has learnt

const canvas = $("canvas");
const ink = canvas.getContext("2d");
const SIDE = canvas.width;
const pens = new Map(); // Pointer to its last place.
const keyboard = { x: SIDE / 2, y: SIDE / 2, down: false };
let soon = 0;

function wipe() {
  ink.fillStyle = "#000";
  ink.fillRect(0, 0, SIDE, SIDE);
  $("board-hint").hidden = false;
}

function line(from, to) {
  ink.strokeStyle = "#fff";
  ink.lineWidth = PEN * SIDE;
  ink.lineCap = ink.lineJoin = "round";
  ink.beginPath();
  ink.moveTo(from.x, from.y);
  ink.lineTo(to.x, to.y);
  ink.stroke();
  $("board-hint").hidden = true;
  stale();
  clearTimeout(soon);
  soon = setTimeout(send, 350);
}

function send() {
  clearTimeout(soon);
  canvas.toBlob((blob) => classify(blob), "image/png");
}

function place(event) {
  const box = canvas.getBoundingClientRect();
  return {
    x: ((event.clientX - box.left) / box.width) * SIDE,
    y: ((event.clientY - box.top) / box.height) * SIDE,
  };
}

canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  $("pen").hidden = true;
  canvas.setPointerCapture(event.pointerId);
  pens.set(event.pointerId, place(event));
  line(place(event), place(event));
});
canvas.addEventListener("pointermove", (event) => {
  if (!pens.has(event.pointerId)) return;
  // Where the browser has seen more than it tells one by one.
  const parts = event.getCoalescedEvents ? event.getCoalescedEvents() : [];
  for (const part of parts.length ? parts : [event]) {
    line(pens.get(event.pointerId), place(part));
    pens.set(event.pointerId, place(part));
  }
});
for (const kind of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(kind, (event) => pens.delete(event.pointerId));
}

canvas.addEventListener("keydown", (event) => {
  const step = SIDE / (event.shiftKey ? 56 : 20);
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const move = moves[event.key];
  if (move) {
    const from = { ...keyboard };
    keyboard.x = Math.min(Math.max(keyboard.x + move[0] * step, 0), SIDE);
    keyboard.y = Math.min(Math.max(keyboard.y + move[1] * step, 0), SIDE);
    if (keyboard.down) line(from, keyboard);
  } else if (event.key === " ") {
    keyboard.down = !keyboard.down;
    if (keyboard.down) line(keyboard, keyboard);
    $("announce").textContent = keyboard.down ? "Pen down" : "Pen up";
  } else if (event.key === "Delete" || event.key === "Backspace") {
    clear();
  } else {
    return;
  }
  event.preventDefault();
  showPen();
});
canvas.addEventListener("blur", () => { $("pen").hidden = true; keyboard.down = false; });

function showPen() {
  const pen = $("pen");
  pen.hidden = false;
  pen.classList.toggle("down", keyboard.down);
  pen.style.left = `${(keyboard.x / SIDE) * 100}%`;
  pen.style.top = `${(keyboard.y / SIDE) * 100}%`;
}

function clear() {
  clearTimeout(soon);
  Object.assign(keyboard, { x: SIDE / 2, y: SIDE / 2, down: false });
  wipe();
  reset();
}
$("clear").addEventListener("click", clear);

// ---- a text

$("writing").addEventListener("submit", async (event) => {
  event.preventDefault();
  const own = (turn += 1);
  const text = $("text").value;
  const wish = { text, characters: Number($("characters").value), temperature: Number($("temperature").value) };
  if ($("seed").value !== "") wish.seed = Number($("seed").value);
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(wish) };
  const tell = (problem) => {
    $("text-problem").textContent = problem;
    $("text-problem").hidden = !problem;
  };
  tell("");
  $("go").disabled = true;
  $("go").textContent = "Writing …";
  try {
    const answer = await ask("complete", options, own, tell);
    const before = document.createElement("span");
    before.textContent = text;
    $("completion").replaceChildren(before, answer.completion);
    $("completion").hidden = false;
    $("text-timing").textContent = `${wish.characters} characters in ${answer.latency_ms.total.toFixed(0)} ms, by step ${count(answer.checkpoint.step)}`;
    facts(answer.checkpoint, model);
    tell("");
  } catch (error) {
    tell(words(error));
  }
  $("go").disabled = false;
  $("go").textContent = "Complete";
});

wipe();
look();
