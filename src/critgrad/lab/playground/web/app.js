// The page: choices, playing, words. What is shown is looked up in the recorded runs.
"use strict";

const $ = (selector, root = document) => root.querySelector(selector);
const SIDES = ["a", "b"];
const KNOBS = ["lr", "topC", "decay"];
const indexOf = (name) => HEADER.optimizers.findIndex((optimizer) => optimizer.name === name);
const state = {
  surface: 0,
  t: 30,
  playing: false,
  // A base and its memory at the same learning rate: what is seen is what the memory does.
  a: { optimizer: indexOf("SGD"), lr: 1, topC: 1, decay: 1 },
  b: { optimizer: indexOf("SGD_C"), lr: 1, topC: 1, decay: 1 },
};
const cards = {};
let runs = null;
let current = {};
let mapView = null;

function values(knob, side) {
  if (knob !== "lr") return HEADER[knob];
  return HEADER.surfaces[state.surface].lrs[HEADER.optimizers[state[side].optimizer].family];
}

function buildCard(side) {
  const root = $(`#card-${side}`);
  root.append($("#card").content.cloneNode(true));
  const card = { root, knobs: {}, numbers: {} };
  $(".side", root).textContent = side.toUpperCase();
  const select = $(".optimizer", root);
  select.setAttribute("aria-label", `Optimizer ${side.toUpperCase()}`);
  HEADER.optimizers.forEach((optimizer, i) => select.add(new Option(optimizer.name, i)));
  select.addEventListener("change", () => choose(() => (state[side].optimizer = Number(select.value))));
  for (const knob of KNOBS) {
    const label = document.createElement("label");
    label.textContent = knob;
    const slider = document.createElement("input");
    Object.assign(slider, { type: "range", min: 0, step: 1, id: `${knob}-${side}` });
    label.htmlFor = slider.id;
    const output = document.createElement("output");
    output.htmlFor = slider.id;
    slider.addEventListener("input", () => choose(() => (state[side][knob] = Number(slider.value))));
    $(".knobs", root).append(label, slider, output);
    card.knobs[knob] = { label, slider, output };
  }
  for (const [key, name] of [["loss", "loss"], ["g", "|g|, raw"], ["d", "|d|, handed"], ["turn", "turned by"]]) {
    const box = document.createElement("div");
    box.innerHTML = `<dt>${name}</dt><dd></dd>`;
    $(".numbers", root).append(box);
    card.numbers[key] = $("dd", box);
  }
  cards[side] = card;
}

function choose(change) {
  change();
  refresh();
  remember();
}

// Everything that depends on the choices, not on the step.
function refresh() {
  for (const side of SIDES) current[side] = runs.find(state.surface, state[side]);
  const surface = HEADER.surfaces[state.surface];
  $("#surface").value = state.surface;
  $("#story").textContent = surface.story;
  for (const side of SIDES) {
    const { root, knobs } = cards[side];
    const optimizer = HEADER.optimizers[state[side].optimizer];
    $(".optimizer", root).value = state[side].optimizer;
    $(".note", root).textContent = optimizer.note;
    $(".swatch", root).innerHTML = swatch(side, optimizer.color);
    for (const knob of KNOBS) {
      const { label, slider, output } = knobs[knob];
      const choices = values(knob, side);
      const off = knob !== "lr" && !optimizer.memory;
      slider.max = choices.length - 1;
      slider.value = state[side][knob];
      slider.disabled = off;
      output.value = off ? "–" : String(choices[state[side][knob]]);
      slider.setAttribute("aria-valuetext", output.value);
      for (const part of [label, slider, output]) part.classList.toggle("off", off);
    }
    $(".slots-box figcaption", root).textContent = optimizer.memory ? "age of each slot’s gradient, in steps" : "";
  }
  drawLegend();
  draw();
}

function drawLegend() {
  const item = (picture, words) => `<span>${picture}${words}</span>`;
  const line = (dash) => `<svg width="34" height="16" aria-hidden="true"><path d="M1 8H24" stroke="currentColor"
    stroke-width="${dash ? 1.6 : 3}"${dash ? ' stroke-dasharray="5 4"' : ""}/><path d="M24 3.5V12.5L33 8Z"
    fill="${dash ? "none" : "currentColor"}" stroke="currentColor" stroke-width="1.3"/></svg>`;
  const circle = '<svg width="14" height="16" aria-hidden="true"><circle cx="7" cy="8" r="4" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>';
  const starShape = '<svg width="16" height="16" viewBox="-8 -8 16 16" aria-hidden="true"><path fill="currentColor" d="M0-7.5L2-2.5 7.2-2.3 3.1 1 4.4 6.1 0 3.2-4.4 6.1-3.1 1-7.2-2.3-2-2.5Z"/></svg>';
  $("#legend").innerHTML =
    SIDES.map((side) => item(swatch(side, current[side].optimizer.color), `${side.toUpperCase()}: ${current[side].optimizer.name}`)).join("") +
    item(line(true), "raw −g") + item(line(false), "handed to the optimizer, −d") +
    item(circle, "start") + item(starShape, "minimum");
}

function statusOf(run, t) {
  if (run.diverged && t >= run.left) {
    const stopped = run.left < run.length ? `, run ended at step ${run.length}` : "";
    return `Diverged: left the picture at step ${run.left}${stopped}.`;
  }
  return run.outside(t) ? "Outside of the picture at this step." : "";
}

function drawCard(side) {
  const run = current[side], { root, numbers } = cards[side];
  const over = state.t >= run.length;
  const g = run.gradient(state.t), d = run.direction(state.t);
  const [gn, dn] = [Math.hypot(...g), Math.hypot(...d)];
  numbers.loss.textContent = number(run.loss(state.t));
  numbers.g.textContent = over ? "–" : number(gn);
  numbers.d.textContent = over ? "–" : number(dn);
  numbers.turn.textContent = over || !gn || !dn ? "–" : `${Math.round(turn(g, d))}°`;
  const status = $(".status", root);
  const words = statusOf(run, state.t);
  const slots = run.slots(state.t).filter(Boolean);
  const held = run.optimizer.memory ? `${slots.length} of ${run.topC} slots in use` : "";
  if (status.textContent !== (words || held)) status.textContent = words || held;
  status.classList.toggle("bad", words.startsWith("Diverged"));
  const compass = $(".compass", root), bars = $(".slots", root);
  drawCompass(compass, run, state.t);
  drawSlots(bars, run, state.t);
  compass.setAttribute("aria-label", `Directions of ${run.optimizer.name}: raw norm ${number(gn)}, handed norm ${number(dn)}`);
  bars.setAttribute(
    "aria-label",
    slots.map((slot) => `age ${slot.age}, priority ${number(slot.priority)}`).join("; ") || "empty memory",
  );
}

function turn(g, d) {
  const cosine = (g[0] * d[0] + g[1] * d[1]) / (Math.hypot(...g) * Math.hypot(...d));
  return (Math.acos(Math.max(-1, Math.min(1, cosine))) * 180) / Math.PI;
}

function describe(side) {
  const run = current[side], t = state.t;
  const name = `${side.toUpperCase()} (${run.optimizer.name})`;
  if (run.diverged && t >= run.left) return `${name} left the picture at step ${run.left} and diverged.`;
  if (!run.optimizer.memory) return `${name} has no memory and takes the gradient as it is.`;
  const slots = run.slots(t).filter(Boolean);
  if (!slots.length) return `${name} has an empty memory and takes the gradient as it is.`;
  const g = run.gradient(t), d = run.direction(t);
  const ratio = Math.hypot(...d) / Math.max(Math.hypot(...g), 1e-300);
  const damps = run.optimizer.memory.aggr === "fisher";
  const change = damps ? `damps it to ${number(ratio)} of its length` : `makes it ${number(ratio)} times as long`;
  const oldest = Math.max(...slots.map((slot) => slot.age));
  const count = slots.length === 1 ? "1 stored gradient" : `${slots.length} stored gradients, the oldest`;
  const age = `${oldest} step${oldest > 1 ? "s" : ""} old`;
  return `${name} turns the gradient by ${Math.round(turn(g, d))}° and ${change}, with ${count} ${age}.`;
}

// Everything that depends on the step.
function draw() {
  if (!runs) return;
  const t = state.t;
  mapView.draw(runs, state.surface, current, t);
  drawLoss($("#loss"), current, t);
  for (const side of SIDES) drawCard(side);
  $("#scrub").value = t;
  $("#clock").value = `step ${t} of ${FRAMES - 1}`;
  $("#telling").textContent = SIDES.map(describe).join(" ");
  const where = (side) => `${current[side].optimizer.name} at ${current[side].position(t).map((v) => number(v)).join(", ")}`;
  $("#map").setAttribute("aria-label", `${HEADER.surfaces[state.surface].title}, step ${t}: ${where("a")}; ${where("b")}`);
  $("#loss").setAttribute("aria-label", `Loss: A ${number(current.a.loss(t))}, B ${number(current.b.loss(t))}`);
}

function go(t) {
  state.t = Math.max(0, Math.min(FRAMES - 1, t));
  draw();
}

function play(on) {
  if (on && state.t >= FRAMES - 1) state.t = 0;
  state.playing = on;
  $("#play").textContent = on ? "Pause" : "Play";
  if (!on) return remember();
  let before = performance.now(), due = 0;
  const tick = (now) => {
    if (!state.playing) return;
    due += ((now - before) / 1000) * Number($("#speed").value);
    before = now;
    const steps = Math.floor(due);
    due -= steps;
    if (steps) go(state.t + steps);
    if (state.t >= FRAMES - 1) play(false);
    else requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}

// The choice stands in the address, so that it can be passed on.
function remember() {
  const side = (s) => [HEADER.optimizers[s.optimizer].name, s.lr, s.topC, s.decay].join(",");
  const hash = `#${HEADER.surfaces[state.surface].key}/${side(state.a)}/${side(state.b)}/${state.t}`;
  try {
    history.replaceState(null, "", hash);
  } catch {
    // Some browsers forbid it for local files; the page works all the same.
  }
}

function recall() {
  const [key, a, b, t] = decodeURIComponent(location.hash.slice(1)).split("/");
  const surface = HEADER.surfaces.findIndex((s) => s.key === key);
  if (surface >= 0) state.surface = surface;
  [a, b].forEach((words, i) => {
    const [name, ...knobs] = (words || "").split(",");
    const most = [3, HEADER.topC.length - 1, HEADER.decay.length - 1];
    const given = knobs.map(Number);
    if (indexOf(name) < 0 || given.length !== 3 || !given.every((v, k) => Number.isInteger(v) && v >= 0 && v <= most[k])) return;
    state[SIDES[i]] = { optimizer: indexOf(name), lr: given[0], topC: given[1], decay: given[2] };
  });
  if (t !== undefined && Number.isInteger(Number(t))) state.t = Math.max(0, Math.min(FRAMES - 1, Number(t)));
}

function listen() {
  $("#surface").addEventListener("change", (event) => choose(() => (state.surface = Number(event.target.value))));
  $("#scrub").addEventListener("input", (event) => go(Number(event.target.value)));
  $("#scrub").addEventListener("change", remember);
  $("#play").addEventListener("click", () => play(!state.playing));
  const step = (by) => {
    play(false);
    go(state.t + by);
    remember();
  };
  $("#back").addEventListener("click", () => step(-1));
  $("#forward").addEventListener("click", () => step(1));
  document.addEventListener("keydown", (event) => {
    if (event.target !== document.body || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { " ": () => play(!state.playing), ArrowLeft: () => step(-1), ArrowRight: () => step(1) };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  window.addEventListener("hashchange", () => {
    recall();
    refresh();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readTheme();
    refresh();
  });
  new ResizeObserver(draw).observe($("#main"));
}

async function start() {
  readTheme();
  runs = new Runs(await inflate($("#frames").textContent));
  $("#frames").remove(); // megabytes of text that nobody needs any more
  $("#notice").hidden = true;
  $("#main").hidden = false;
  mapView = new SurfaceMap($("#map"));
  HEADER.surfaces.forEach((surface, i) => $("#surface").add(new Option(surface.title, i)));
  $("#scrub").max = FRAMES - 1;
  SIDES.forEach(buildCard);
  recall();
  listen();
  refresh();
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  $("#notice").hidden = false;
  $("#notice").textContent = `The playground could not start. ${error.message}`;
  console.error(error);
});
