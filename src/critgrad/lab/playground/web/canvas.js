// Drawing helpers: canvases in CSS pixels, theme colours, lines with a casing, arrows, ticks.
"use strict";

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["page", "panel", "ink", "soft", "rule", "low", "high", "contour"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function contrast(one, other) {
  const light = (hex) => {
    const [r, g, b] = rgb(hex).map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const [a, b] = [light(one), light(other)];
  return Math.max(a, b) / Math.min(a, b);
}

// Black is drawn as the ink of the theme, and on a dark panel a dark colour with as much ink in it as makes it readable; a
// light colour on a light panel gets a dark casing instead.
function lineColor(color) {
  if (color === "#000000") return theme.ink;
  const dark = contrast(theme.panel, "#ffffff") > 4.5;
  let shown = color;
  for (let share = 0.15; dark && contrast(shown, theme.panel) < 5.5 && share < 1; share += 0.15) {
    const [ink, own] = [rgb(theme.ink), rgb(color)];
    shown = "#" + own.map((v, i) => Math.round(v + share * (ink[i] - v)).toString(16).padStart(2, "0")).join("");
  }
  return shown;
}
const casing = (color) => (contrast(lineColor(color), theme.panel) < 1.7 ? theme.soft : theme.panel);

// The context of a canvas, its pixels fitted to its size on the screen, cleared.
function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  ctx.font = FONT;
  ctx.lineJoin = ctx.lineCap = "round";
  return { ctx, width, height, ratio };
}

function polyline(ctx, points, color, { width = 2, dash = [], edge = null } = {}) {
  if (points.length < 2) return;
  ctx.beginPath();
  points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.setLineDash(dash); // the casing's, too: what lies below shows through the gaps
  ctx.lineCap = dash.length ? "butt" : "round";
  if (edge) {
    ctx.strokeStyle = edge;
    ctx.lineWidth = width + 2.5;
    ctx.stroke();
  }
  ctx.strokeStyle = color;
  ctx.lineWidth = width;
  ctx.stroke();
  ctx.setLineDash([]);
}

// An arrow from a point by (dx, dy) pixels; hollow: the raw gradient, filled: what the optimizer was handed.
function arrow(ctx, [x, y], [dx, dy], color, { width = 2.5, hollow = false, edge = null, head = 9 } = {}) {
  const length = Math.hypot(dx, dy);
  if (length < 1) return;
  const [ux, uy] = [dx / length, dy / length];
  const size = Math.min(head, length);
  const neck = [x + dx - ux * size, y + dy - uy * size];
  polyline(ctx, [[x, y], neck], color, { width, dash: hollow ? [5, 4] : [], edge });
  ctx.beginPath();
  ctx.moveTo(x + dx, y + dy);
  ctx.lineTo(neck[0] - uy * size * 0.5, neck[1] + ux * size * 0.5);
  ctx.lineTo(neck[0] + uy * size * 0.5, neck[1] - ux * size * 0.5);
  ctx.closePath();
  ctx.lineWidth = 1.5;
  ctx.strokeStyle = hollow ? color : edge || color;
  ctx.stroke();
  ctx.fillStyle = hollow ? theme.panel : color;
  ctx.fill();
}

// A is a disc, B a square, so that two runs of one optimizer can be told apart.
function marker(ctx, [x, y], side, color, size = 6) {
  ctx.beginPath();
  if (side === "a") ctx.arc(x, y, size, 0, 2 * Math.PI);
  else ctx.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
  ctx.fillStyle = color;
  ctx.fill();
  ctx.lineWidth = 2;
  ctx.strokeStyle = contrast(color, theme.panel) < 1.7 ? theme.soft : theme.panel;
  ctx.stroke();
}

const DASHES = { a: [], b: [7, 5] };

// A short piece of the line and the marker of a side, for legends.
function swatch(side, color) {
  const line = lineColor(color), edge = casing(color);
  const shape = side === "a" ? '<circle cx="17" cy="8" r="5"' : '<rect x="12.5" y="3.5" width="9" height="9"';
  const dash = side === "a" ? "" : ' stroke-dasharray="5 3"';
  return `<svg width="34" height="16" aria-hidden="true"><path d="M1 8H33" stroke="${edge}" stroke-width="5"/>
    <path d="M1 8H33" stroke="${line}" stroke-width="2.5"${dash}/>${shape} fill="${line}" stroke="${edge}"/></svg>`;
}

function ticks(low, high, about) {
  const raw = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= raw);
  const out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) out.push(Math.round(v / step) * step);
  return out;
}

// Ticks between two logarithms, as [logarithm, label]: powers of ten, about `most` of them; with less than one and a
// half decades 1, 2, 5, 10.
function logTicks(low, high, most) {
  const step = Math.max(1, Math.ceil((high - low) / most));
  const parts = high - low < 1.5 ? [1, 2, 5] : [1];
  const out = [];
  for (let e = Math.floor(low); e <= high; e++) {
    if (e % step !== 0) continue;
    for (const part of parts) {
      const v = e + Math.log10(part);
      if (v >= low - 1e-9 && v <= high + 1e-9) out.push([v, part === 1 ? powerOfTen(e) : number(part * 10 ** e, 1)]);
    }
  }
  return out;
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
function powerOfTen(e) {
  if (e >= -2 && e <= 3) return String(10 ** e);
  return `10${e < 0 ? "⁻" : ""}${[...String(Math.abs(e))].map((d) => SUPERSCRIPTS[d]).join("")}`;
}

function number(value, digits = 3) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4 || size < 1e-3) return value.toExponential(Math.min(1, digits - 1)).replace("e+", "e").replaceAll("-", "−");
  // At least as many digits as stand before the point: toPrecision would turn to exponents.
  return value.toPrecision(Math.max(digits, Math.floor(Math.log10(size)) + 1)).replace("-", "−");
}

const tickLabel = (value) => String(Math.round(value * 1e6) / 1e6).replace("-", "−");

function text(ctx, string, x, y, { align = "left", baseline = "alphabetic", color = theme.soft, font = FONT } = {}) {
  ctx.font = font;
  ctx.textAlign = align;
  ctx.textBaseline = baseline;
  ctx.fillStyle = color;
  ctx.fillText(string, x, y);
}
