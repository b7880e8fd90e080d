// The recorded runs: unpacking what benchmarks/playground_frames/codec.py packed, and finding the run of a choice. No optimizer is computed here.
"use strict";

const HEADER = JSON.parse(document.getElementById("header").textContent);
const FRAMES = HEADER.frames;
const TOP = 65535;

async function inflate(base64) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser is too old to unpack the runs: it lacks DecompressionStream.");
  }
  const bytes = Uint8Array.from(atob(base64.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// codec.unpack: low and high bytes of differences along each row, modulo 65536.
function unpack(bytes, at, [rows, columns]) {
  const size = rows * columns;
  const codes = new Uint16Array(size);
  for (let row = 0; row < rows; row++) {
    let code = 0;
    for (let i = row * columns; i < (row + 1) * columns; i++) {
      code = (code + bytes[at + i] + (bytes[at + size + i] << 8)) & TOP;
      codes[i] = code;
    }
  }
  return codes;
}

// codec.linear_values and codec.log_values.
const linear = (code, low, high) => low + (code / TOP) * (high - low);
const logOf = (code) => HEADER.log[0] + ((code - 1) / (TOP - 1)) * (HEADER.log[1] - HEADER.log[0]);
const positive = (code) => (code === 0 ? 0 : 10 ** logOf(code));

class Runs {
  constructor(bytes) {
    this.arrays = {};
    let at = 0;
    for (const [name, shape] of HEADER.arrays) {
      this.arrays[name] = unpack(bytes, at, shape);
      at += 2 * shape[0] * shape[1];
    }
    // Where each optimizer's runs begin; the order within is surface, lr and, with a memory, topC and decay.
    this.first = [];
    let run = 0, slot = 0;
    const perMemory = HEADER.topC.reduce((sum, c) => sum + c, 0) * HEADER.decay.length;
    for (const optimizer of HEADER.optimizers) {
      this.first.push({ run, slot });
      const rates = HEADER.surfaces.length * 4;
      run += rates * (optimizer.memory ? HEADER.topC.length * HEADER.decay.length : 1);
      slot += rates * (optimizer.memory ? perMemory : 0);
    }
  }

  map(surface) {
    const size = HEADER.grid * HEADER.grid;
    return Float64Array.from(this.arrays.map.subarray(surface * size, (surface + 1) * size), logOf);
  }

  // choice: {optimizer, lr, topC, decay}, each an index.
  find(surface, choice) {
    const optimizer = HEADER.optimizers[choice.optimizer];
    const first = this.first[choice.optimizer];
    const rate = surface * 4 + choice.lr;
    if (!optimizer.memory) return new Run(this.arrays, surface, optimizer, first.run + rate, 0, 0);
    const decays = HEADER.decay.length;
    const each = HEADER.topC.reduce((sum, c) => sum + c, 0) * decays;
    const before = HEADER.topC.slice(0, choice.topC).reduce((sum, c) => sum + c, 0) * decays;
    const topC = HEADER.topC[choice.topC];
    const run = first.run + (rate * HEADER.topC.length + choice.topC) * decays + choice.decay;
    const slot = first.slot + rate * each + before + choice.decay * topC;
    return new Run(this.arrays, surface, optimizer, run, slot, topC);
  }
}

class Run {
  constructor(arrays, surface, optimizer, row, slot, topC) {
    Object.assign(this, { arrays, optimizer, row, slot, topC });
    this.surface = HEADER.surfaces[surface];
    this.length = arrays.length[row];
    this.diverged = this.length < FRAMES;
    this.left = this.length; // for one that diverged: the step at which it left the picture for good
    while (this.left > 0 && this.outside(this.left - 1)) this.left--;
  }

  at(name, t) {
    return this.arrays[name][this.row * FRAMES + Math.min(t, this.length - 1)];
  }

  position(t) {
    const { center, halfWidth } = this.surface;
    const reach = HEADER.reach * halfWidth;
    return ["x", "y"].map((name, i) => linear(this.at(name, t), center[i] - reach, center[i] + reach));
  }

  outside(t) {
    const { center, halfWidth } = this.surface;
    return this.position(t).some((v, i) => Math.abs(v - center[i]) > halfWidth);
  }

  loss(t) {
    return positive(this.at("loss", t));
  }

  vector(name, t) {
    const r = positive(this.at(`${name}_length`, t));
    const a = linear(this.at(`${name}_angle`, t), -Math.PI, Math.PI);
    return [r * Math.cos(a), r * Math.sin(a)];
  }

  gradient(t) {
    return this.vector("gradient", t);
  }

  direction(t) {
    return this.vector("direction", t);
  }

  // The slots at step t: null if free, else age, priority and the gradient, which is the one of `age` steps before.
  slots(t) {
    const now = Math.min(t, this.length - 1);
    return Array.from({ length: this.topC }, (_, k) => {
      const i = (this.slot + k) * FRAMES + now;
      const age = this.arrays.age[i];
      if (age === 0) return null;
      return { age, priority: positive(this.arrays.priority[i]), gradient: this.gradient(now - age) };
    });
  }

  // The largest and smallest priority of the whole run, for an axis that stands still.
  priorityRange() {
    let low = Infinity, high = 0;
    for (let k = 0; k < this.topC; k++) {
      for (let t = 0; t < this.length; t++) {
        const code = this.arrays.priority[(this.slot + k) * FRAMES + t];
        if (code > 0) [low, high] = [Math.min(low, code), Math.max(high, code)];
      }
    }
    return high ? [logOf(low), logOf(high)] : [-1, 0];
  }
}
