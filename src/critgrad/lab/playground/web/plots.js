// The small pictures: loss against step, the compass of directions, the slots of a memory.
"use strict";

function drawLoss(canvas, sides, t) {
  const { ctx, width, height } = prepare(canvas);
  const left = 46, right = width - 12, top = 30, bottom = height - 34;
  const floor = -12; // smaller losses are drawn as this
  const logOfLoss = (run, i) => Math.max(floor, Math.log10(Math.max(run.loss(i), 1e-300)));
  let low = Infinity, high = -Infinity;
  for (const run of Object.values(sides)) {
    for (let i = 0; i < run.length; i++) {
      const v = logOfLoss(run, i);
      [low, high] = [Math.min(low, v), Math.max(high, v)];
    }
  }
  [low, high] = [Math.floor(low), Math.max(Math.ceil(high), Math.floor(low) + 1)];
  const x = (i) => left + ((right - left) * i) / (FRAMES - 1);
  const y = (v) => bottom - ((bottom - top) * (v - low)) / (high - low);
  for (const [v, label] of logTicks(low, high, 5)) {
    polyline(ctx, [[left, y(v)], [right, y(v)]], theme.rule, { width: 1 });
    text(ctx, label, left - 6, y(v), { align: "right", baseline: "middle" });
  }
  for (let i = 0; i < FRAMES; i += 20) text(ctx, String(i), x(i), bottom + 5, { align: "center", baseline: "top" });
  text(ctx, "loss (log scale)", 2, 3, { baseline: "top" });
  text(ctx, "step", right, height - 1, { align: "right", baseline: "bottom" });
  polyline(ctx, [[x(t), top], [x(t), bottom]], theme.soft, { width: 1, dash: [2, 3] });
  for (const [name, run] of Object.entries(sides)) {
    const color = run.optimizer.color;
    const points = Array.from({ length: run.length }, (_, i) => [x(i), y(logOfLoss(run, i))]);
    ctx.globalAlpha = 0.45; // what is still to come
    polyline(ctx, points, lineColor(color), { width: 1.5 });
    ctx.globalAlpha = 1;
    polyline(ctx, points.slice(0, t + 1), lineColor(color), { width: 2, dash: DASHES[name], edge: casing(color) });
    if (run.diverged) {
      const [cx, cy] = points[points.length - 1];
      for (const s of [-1, 1]) polyline(ctx, [[cx - 6, cy - 6 * s], [cx + 6, cy + 6 * s]], lineColor(color), { width: 3 });
    }
  }
  for (const [name, run] of Object.entries(sides)) {
    if (t < run.length) marker(ctx, [x(t), y(logOfLoss(run, t))], name, lineColor(run.optimizer.color), 5);
  }
}

// All arrows from the middle: stored gradients thin (the older the fainter, on a scale of their own), -g, -d.
function drawCompass(canvas, run, t) {
  const { ctx, width, height } = prepare(canvas);
  const middle = [width / 2, height / 2], radius = Math.min(width, height) / 2 - 3;
  ctx.beginPath();
  ctx.arc(...middle, radius, 0, 2 * Math.PI);
  ctx.strokeStyle = theme.rule;
  ctx.lineWidth = 1;
  ctx.stroke();
  if (t >= run.length) return;
  const color = lineColor(run.optimizer.color);
  const down = ([x, y], unit) => [-x * unit, y * unit];
  const slots = run.slots(t).filter(Boolean);
  const longest = Math.max(1e-300, ...slots.map((slot) => Math.hypot(...slot.gradient)));
  for (const slot of slots) {
    ctx.globalAlpha = faint(slot.age);
    arrow(ctx, middle, down(slot.gradient, (radius - 3) / longest), theme.soft, { width: 1.2, head: 5 });
  }
  ctx.globalAlpha = 1;
  const g = run.gradient(t), d = run.direction(t);
  const unit = (radius * 0.8) / Math.max(Math.hypot(...g), Math.hypot(...d), 1e-300);
  if (run.optimizer.memory) arrow(ctx, middle, down(d, unit), color, { width: 3, edge: casing(run.optimizer.color) });
  arrow(ctx, middle, down(g, unit), theme.ink, { width: 1.6, hollow: true });
}

const faint = (age) => Math.max(0.4, 0.95 * 0.97 ** (age - 1));

function drawSlots(canvas, run, t) {
  const { ctx, width, height } = prepare(canvas);
  if (!run.optimizer.memory) {
    text(ctx, "no memory: d = g", width / 2, height / 2, { align: "center", baseline: "middle" });
    return;
  }
  const rows = run.topC > 10 ? 2 : 1; // of ages: with many slots every other one is a row lower
  const left = 34, right = width - 2, top = 24, bottom = height - 6 - 12 * rows;
  const [least, most] = run.priorityRange();
  // Six decades are enough: what lies below has as good as lost its slot.
  const low = Math.floor(Math.max(least, most - 6)) - 0.3, high = Math.max(most, low + 1);
  const y = (v) => bottom - ((bottom - top) * Math.max(0, v - low)) / (high - low);
  text(ctx, "priority (log)", 0, 1, { baseline: "top" });
  for (const [v, label] of logTicks(low, high, 4)) {
    polyline(ctx, [[left, y(v)], [right, y(v)]], theme.rule, { width: 1 });
    text(ctx, label, left - 5, y(v), { align: "right", baseline: "middle", font: FONT.replace("12px", "11px") });
  }
  const pitch = (right - left) / run.topC, bar = Math.min(34, pitch * 0.72);
  run.slots(t).forEach((slot, k) => {
    const x = left + pitch * (k + 0.5) - bar / 2;
    if (!slot) {
      ctx.setLineDash([2, 3]);
      ctx.strokeStyle = theme.rule;
      ctx.lineWidth = 1;
      ctx.strokeRect(x, bottom - 10, bar, 10);
      ctx.setLineDash([]);
      return;
    }
    const upper = Math.min(y(Math.log10(Math.max(slot.priority, 1e-300))), bottom - 2);
    ctx.globalAlpha = faint(slot.age);
    ctx.fillStyle = lineColor(run.optimizer.color);
    ctx.fillRect(x, upper, bar, bottom - upper);
    ctx.globalAlpha = 1;
    if (slot.age === 1) {
      ctx.strokeStyle = theme.ink;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(x, upper, bar, bottom - upper);
    }
    const font = FONT.replace("12px", rows > 1 ? "10px" : "11px");
    text(ctx, String(slot.age), x + bar / 2, bottom + 4 + 12 * (k % rows), { align: "center", baseline: "top", font });
  });
}
