// The page of the inference server. Everything that it shows comes from /model and the answers.
"use strict";

const $ = (id) => document.getElementById(id);
const POLL = 3000; // Milliseconds between two requests to /model, while the page is visible.
const RETRIES = 4; // Of a request while the server is busy or not ready.
const PEN = 0.085; // The line's width as a share of the board.
const LONG = 8; // Characters of a class's name that fit beside its bar.
const WAITS = "The page sends this again as soon as the server answers.";
const given = { draw: null, file: null }; // The last Blob of each tab.
let tab = "draw";
let model = null; // The last answer of /model.
let turn = 0; // Number of the newest request: older answers are not shown.
let lost = null; // Repeats the request that failed without a connection.
let timer = 0; // Of the next request to /model.

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

// Repeat a request a few times if the server is busy or not ready.
async function ask(path, options, own, problem) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await call(path, options);
    } catch (error) {
      const later = error.status === 429 || error.status === 503;
      if (own !== turn || !later || tries >= RETRIES) throw error;
      const wait = error.after || 2 ** tries;
      problem.show(`${words(error)} Trying again in ${wait} s …`);
      await new Promise((done) => setTimeout(done, wait * 1000));
    }
  }
}

function words(error) {
  if (error.status === undefined) return "There is no connection to the server.";
  if (error.status === 401) return "The server asks for its token.";
  if (error.status === 429) return "The server is busy: too many others wait.";
  const text = [error.message, error.fix].filter(Boolean).join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

// An error box, with a button to retry if the same request may succeed later.
class Problem {
  constructor(id) {
    this.box = $(id);
    this.again = null;
    this.box.querySelector("button").addEventListener("click", () => this.again());
  }

  show(text, again = null) {
    this.again = again;
    this.box.querySelector("p").textContent = text;
    this.box.querySelector("button").hidden = !again;
    this.box.hidden = !text;
  }

  fail(error, again) {
    const hopeful = error.status === undefined || error.status === 401 || error.status >= 429;
    const waits = error.status === undefined;
    if (waits || error.status === 401) lost = again;
    if (waits) state("bad", "No connection");
    if (error.status === 401) askToken();
    this.show(waits ? `${words(error)} ${WAITS}` : words(error), hopeful ? again : null);
  }
}
const problem = new Problem("problem");
const textProblem = new Problem("text-problem");

function state(kind, text) {
  if ($("state-text").textContent === text) return;
  $("state").className = `state ${kind}`;
  $("state-text").textContent = text;
}

async function look() {
  clearTimeout(timer);
  try {
    answered(await call("model"));
  } catch (error) {
    if (error.status === 401) {
      askToken();
    } else {
      state("bad", "No connection");
      if (!model) wait("No connection", "There is no connection to the server. Trying again …");
    }
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, POLL);
}

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));

function answered(found) {
  $("token-form").hidden = true;
  show(found);
  const again = lost;
  lost = null;
  if (again) again();
}

function wait(title, text) {
  $("waiting").hidden = false;
  $("waiting-title").textContent = title;
  if ($("waiting-text").textContent !== text) $("waiting-text").textContent = text;
}

// ---- the token

function askToken() {
  if (!$("token-form").hidden) return;
  state("", "Needs a token");
  $("waiting").hidden = true;
  $("token-form").hidden = false;
  $("token").focus();
}

function tokenFault(text) {
  $("token-fault").textContent = text;
  $("token").setAttribute("aria-invalid", Boolean(text));
  if (text) $("token").select();
}

$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  if (!/^[!-~]+$/.test(token)) {
    tokenFault("A token has letters, digits and signs of ASCII, without spaces.");
    return;
  }
  sessionStorage.setItem("token", token);
  try {
    const found = await call("model");
    $("token").value = "";
    tokenFault("");
    answered(found);
  } catch (error) {
    sessionStorage.removeItem("token");
    const wrong = error.status === 401;
    state("bad", wrong ? "Wrong token" : "No connection");
    tokenFault(wrong ? "The server does not accept this token." : words(error));
    $("token").focus();
  }
});
$("token").addEventListener("input", () => tokenFault(""));

// ---- what is served

function show(found) {
  const before = model;
  document.title = `${found.name} · inference`;
  $("name").textContent = found.name;
  lead(found);
  if (!found.ready) {
    state("", "Not ready yet");
    wait("Waiting for a checkpoint", `${capital(found.reason)}. This page then continues by itself.`);
    return;
  }
  model = found;
  state("good", "Ready");
  $("waiting").hidden = true;
  const text = found.kind === "text";
  $("pictures").hidden = text || found.kind === "numbers";
  $("writing").hidden = !text;
  if (!before || before.drawn !== found.drawn || before.kind !== found.kind) arrange(found);
  facts(found.checkpoint, found);
  terminal(found);
  if (before && before.checkpoint.name !== found.checkpoint.name) {
    $("newer").textContent = `Another checkpoint answers from now on: step ${count(found.checkpoint.step)}.`;
    $("facts").classList.remove("fresh");
    void $("facts").offsetWidth; // Otherwise the animation would not run again.
    $("facts").classList.add("fresh");
    if (given[tab] && found.kind === "image") classify(given[tab]);
  }
}

function lead(found) {
  const choices = { best: "the best checkpoint so far", newest: "the newest checkpoint" };
  const which = found.ready ? found.checkpoint.choice : "";
  const who = `${choices[which] || "a checkpoint"} of the training ${found.job}`;
  if (!found.ready) {
    $("lead").textContent = `This page asks ${who}.`;
  } else if (found.kind === "text") {
    $("lead").textContent = `Write the beginning of a text: ${who} continues it.`;
  } else if (found.kind === "numbers") {
    $("lead").textContent = `${capital(who)} answers programs: send arrays of ${found.input.shape.join(" × ")} numbers.`;
  } else {
    const give = found.drawn ? "Draw a digit, or choose a picture of one" : "Choose a picture";
    $("lead").textContent = `${give}: ${who} says which of ${found.classes.length} classes it is.`;
  }
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function arrange(found) {
  $("tabs").hidden = !found.drawn;
  reset();
  choose(found.drawn ? "draw" : "file");
  if (found.drawn) $("drop-small").textContent = "PNG, JPEG or WebP of one handwritten digit";
}

function facts(checkpoint, found) {
  $("facts").hidden = false;
  $("fact-job").textContent = checkpoint.job;
  $("fact-step").textContent = `${count(checkpoint.step)} (epoch ${checkpoint.epoch})`;
  $("fact-accuracy").textContent =
    checkpoint.accuracy === null ? "unknown" : `${(checkpoint.accuracy * 100).toFixed(1)} %`;
  $("fact-age").textContent = `${age(checkpoint.age_seconds)} ago, on ${checkpoint.host}`;
  $("fact-model").textContent = `${found.model}, ${found.precision}`;
  const gpus = [...new Set(found.gpus.map((gpu) => gpu.model))].join(", ");
  const number = found.replicas.length > 1 ? `${found.replicas.length} × ` : "";
  $("fact-where").textContent = number + (gpus || found.replicas[0].replace("cpu", "CPU"));
}

const count = (number) => number.toLocaleString("en");

// The server rounds probabilities to a millionth; none is exactly 0 or 1.
function percent(share) {
  if (share >= 0.9995) return "> 99.9 %";
  if (share < 0.0005) return "< 0.1 %";
  return `${(share * 100).toFixed(1)} %`;
}

function age(seconds) {
  const units = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const [size, name] = units.find(([each]) => seconds >= each) || units[3];
  const number = Math.floor(seconds / size);
  return `${number} ${name}${number === 1 ? "" : "s"}`;
}

// ---- the command for a terminal

function terminal(found) {
  const text = found.kind === "text";
  const numbers = found.kind === "numbers";
  const url = new URL(text ? "complete" : numbers ? "predict" : "predict/image", document.baseURI);
  url.username = url.password = "";
  const token = found.needs_token ? ' -H "Authorization: Bearer $TOKEN"' : "";
  const zeros = found.input.shape.reduceRight((row, size) => Array(size).fill(row), 0);
  const body = numbers
    ? ` -H 'Content-Type: application/json' -d '${JSON.stringify({ inputs: [zeros] })}'`
    : text
    ? ` -H 'Content-Type: application/json' -d '{"text": "", "characters": 200}'`
    : ` -F image=@${found.drawn ? "digit" : "picture"}.png`;
  $("curl").textContent = `curl ${quoted(url.href)}${token}${body}`;
  $("curl-help").textContent = found.needs_token ? "The variable TOKEN must have the server's token." : "";
  $("terminal").hidden = false;
}

const quoted = (word) => (/^[\w.:/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

$("copy").addEventListener("click", async () => {
  const text = $("curl").textContent;
  // Without HTTPS a page has no clipboard API: use the browser's old command.
  const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  if (!copied) {
    getSelection().selectAllChildren($("curl"));
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy"; }, 2000);
});

// ---- a picture's classes

async function classify(blob) {
  const own = stale();
  const body = new FormData();
  body.append("image", blob, "picture.png");
  try {
    const answer = await ask("predict/image?show=true", { method: "POST", body }, own, problem);
    if (own === turn) result(answer);
  } catch (error) {
    if (own === turn) {
      // The previous picture's result does not belong to this one.
      $("empty").hidden = $("result").hidden = true;
      problem.fail(error, () => classify(blob));
    }
  }
  if (own === turn) $("result").classList.remove("busy");
}

// Shown results and pending answers belong to an older picture from now on.
function stale() {
  $("result").classList.add("busy");
  lost = null;
  return (turn += 1);
}

function result(answer) {
  problem.show("");
  const [{ classes, input }] = answer.predictions;
  const [best] = classes;
  $("empty").hidden = true;
  $("result").hidden = false;
  $("seen").src = input;
  const [, height, width] = model.input.shape;
  $("seen").alt = `Your picture as the model sees it, ${width} × ${height} pixels`;
  $("seen-size").textContent = `as the model sees it, ${width} × ${height}`;
  $("best").textContent = best.class;
  $("best").parentElement.classList.toggle("long", best.class.length > 3);
  $("best").parentElement.classList.toggle("longer", best.class.length > 3 * LONG);
  $("sure").textContent = `${percent(best.probability)} probable`;
  const longest = Math.max(...classes.map((each) => each.class.length));
  $("bars").classList.toggle("stacked", longest > LONG);
  $("bars").style.setProperty("--label", `${Math.max(1.5, longest * 0.7)}em`);
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
  fill.style.width = `${each.probability * 100}%`;
  track.append(fill);
  row.append(label, track, share);
  return row;
}

function reset() {
  stale();
  given[tab] = null;
  problem.show("");
  $("empty").hidden = false;
  $("result").hidden = true;
}

// ---- a file: chosen, dropped or pasted

function take(file) {
  if (!file) return;
  if (tab !== "file") choose("file");
  const preview = $("preview");
  if (preview.src) URL.revokeObjectURL(preview.src);
  preview.src = URL.createObjectURL(file);
  preview.alt = "Your picture";
  preview.hidden = false;
  $("file-name").textContent = file.name || "";
  $("file-name").hidden = !file.name;
  $("drop-text").querySelector("strong").textContent = "Choose another";
  given.file = file;
  if (file.size > model.limits.body - 4096) {
    stale();
    $("empty").hidden = $("result").hidden = true;
    problem.show(`The file is too large: ${Math.ceil(file.size / 2 ** 20)} MB, and ${Math.floor(model.limits.body / 2 ** 20)} MB may be.`);
    return;
  }
  classify(file);
}

$("preview").addEventListener("error", () => { $("preview").hidden = true; });
$("file").addEventListener("change", () => {
  take($("file").files[0]);
  $("file").value = ""; // Otherwise the same file could not be chosen again.
});
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

// ---- tabs: each has its own picture; the answer belongs to the visible one

function choose(name) {
  tab = name;
  for (const each of ["draw", "file"]) {
    const chosen = each === name;
    $(`tab-${each}`).setAttribute("aria-selected", chosen);
    $(`tab-${each}`).tabIndex = chosen ? 0 : -1;
    $(`panel-${each}`).hidden = !chosen;
  }
}

function turnTo(name) {
  if (name === tab) return;
  choose(name);
  if (given[name]) classify(given[name]);
  else reset();
}
for (const [name, other] of [["draw", "file"], ["file", "draw"]]) {
  $(`tab-${name}`).addEventListener("click", () => turnTo(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    turnTo(other);
    $(`tab-${other}`).focus();
  });
}

// ---- the board: white on black, like the handwriting of the training data

const canvas = $("canvas");
const ink = canvas.getContext("2d");
const SIDE = canvas.width;
const pens = new Map(); // From a pointer to its last position.
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
  const own = turn;
  canvas.toBlob((blob) => {
    if (own !== turn) return;
    given.draw = blob;
    classify(blob);
  }, "image/png");
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
  // With the positions that the browser has merged into one event.
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

async function write() {
  const own = (turn += 1);
  lost = null;
  const text = $("text").value;
  const wish = { text, characters: Number($("characters").value), temperature: Number($("temperature").value) };
  if ($("seed").value !== "") wish.seed = Number($("seed").value);
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(wish) };
  textProblem.show("");
  $("go").disabled = true;
  $("go").textContent = "Writing …";
  try {
    const answer = await ask("complete", options, own, textProblem);
    const before = document.createElement("span");
    before.textContent = text;
    $("completion").replaceChildren(before, answer.completion);
    $("completion").hidden = false;
    $("text-timing").textContent = `${wish.characters} characters in ${answer.latency_ms.total.toFixed(0)} ms, by step ${count(answer.checkpoint.step)}`;
    facts(answer.checkpoint, model);
    textProblem.show("");
  } catch (error) {
    textProblem.fail(error, write);
  }
  $("go").disabled = false;
  $("go").textContent = "Complete";
}
$("writing").addEventListener("submit", (event) => {
  event.preventDefault();
  write();
});

wipe();
look();
