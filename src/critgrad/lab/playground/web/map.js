// The map: the loss as shaded bands and contour lines, drawn once, and the two walks over it.
"use strict";

const MARGIN = { left: 38, right: 16, top: 8, bottom: 22 };

class SurfaceMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.key = "";
  }

  // Bands of equal area: whatever the surface's range, all of it shows. The lowest are finer, to show the minimum.
  static levels(values) {
    const sorted = Float64Array.from(values).sort();
    const shares = [0.002, 0.008, 0.02, 0.04, ...Array.from({ length: 12 }, (_, i) => 0.075 * (i + 1))];
    return shares.map((share) => sorted[Math.floor(share * (sorted.length - 1))]);
  }

  background(values, side, ratio) {
    const n = HEADER.grid, size = Math.max(2, Math.round(side * ratio));
    const levels = SurfaceMap.levels(values);
    const [low, high] = [rgb(theme.low), rgb(theme.high)];
    const shades = Array.from({ length: levels.length + 1 }, (_, i) => low.map((v, c) => v + ((high[c] - v) * i) / levels.length));
    const picture = document.createElement("canvas");
    picture.width = picture.height = size;
    const ctx = picture.getContext("2d");
    const image = ctx.createImageData(size, size);
    for (let row = 0; row < size; row++) {
      const v = (1 - (row + 0.5) / size) * (n - 1), j = Math.min(n - 2, Math.floor(v)), fv = v - j;
      for (let column = 0; column < size; column++) {
        const u = ((column + 0.5) / size) * (n - 1), i = Math.min(n - 2, Math.floor(u)), fu = u - i;
        const at = j * n + i;
        const value =
          (1 - fv) * ((1 - fu) * values[at] + fu * values[at + 1]) + fv * ((1 - fu) * values[at + n] + fu * values[at + n + 1]);
        let band = 0;
        while (band < levels.length && value > levels[band]) band++;
        const pixel = 4 * (row * size + column);
        for (let c = 0; c < 3; c++) image.data[pixel + c] = shades[band][c];
        image.data[pixel + 3] = 255;
      }
    }
    ctx.putImageData(image, 0, 0);
    ctx.strokeStyle = theme.contour;
    ctx.lineWidth = ratio * 0.7;
    for (const level of levels) SurfaceMap.contour(ctx, values, n, level, size);
    return picture;
  }

  // Marching squares: on each cell, the edges that a level crosses are joined in pairs.
  static contour(ctx, values, n, level, size) {
    const scale = size / (n - 1);
    ctx.beginPath();
    for (let j = 0; j < n - 1; j++) {
      for (let i = 0; i < n - 1; i++) {
        const a = values[j * n + i], b = values[j * n + i + 1], c = values[(j + 1) * n + i + 1], d = values[(j + 1) * n + i];
        const points = [];
        const cross = (p, q, x0, y0, x1, y1) => {
          if (p > level === q > level) return;
          const f = (level - p) / (q - p);
          points.push([(x0 + f * (x1 - x0)) * scale, size - (y0 + f * (y1 - y0)) * scale]);
        };
        cross(a, b, i, j, i + 1, j);
        cross(b, c, i + 1, j, i + 1, j + 1);
        cross(c, d, i + 1, j + 1, i, j + 1);
        cross(d, a, i, j + 1, i, j);
        for (let k = 0; k + 1 < points.length; k += 2) {
          ctx.moveTo(...points[k]);
          ctx.lineTo(...points[k + 1]);
        }
      }
    }
    ctx.stroke();
  }

  draw(runs, surface, sides, t) {
    const side = this.canvas.clientWidth - MARGIN.left - MARGIN.right;
    if (side < 20) return;
    this.canvas.style.height = `${side + MARGIN.top + MARGIN.bottom}px`;
    const { ctx, ratio } = prepare(this.canvas);
    const about = HEADER.surfaces[surface];
    const key = [surface, side, ratio, theme.panel].join();
    if (key !== this.key) [this.key, this.picture] = [key, this.background(runs.map(surface), side, ratio)];
    const { left, top } = MARGIN;
    ctx.drawImage(this.picture, left, top, side, side);
    const low = about.center.map((v) => v - about.halfWidth);
    const scale = side / (2 * about.halfWidth);
    const place = ([x, y]) => [left + (x - low[0]) * scale, top + side - (y - low[1]) * scale];

    for (const v of ticks(low[0], low[0] + 2 * about.halfWidth, 6)) {
      const [x] = place([v, 0]);
      polyline(ctx, [[x, top + side], [x, top + side + 4]], theme.soft, { width: 1 });
      text(ctx, tickLabel(v), x, top + side + 6, { align: "center", baseline: "top" });
    }
    for (const v of ticks(low[1], low[1] + 2 * about.halfWidth, 6)) {
      const [, y] = place([0, v]);
      polyline(ctx, [[left - 4, y], [left, y]], theme.soft, { width: 1 });
      text(ctx, tickLabel(v), left - 6, y, { align: "right", baseline: "middle" });
    }
    ctx.strokeStyle = theme.soft;
    ctx.lineWidth = 1;
    ctx.strokeRect(left, top, side, side);

    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, side, side);
    ctx.clip();
    for (const minimum of about.minima) star(ctx, place(minimum));
    for (const [name, run] of Object.entries(sides)) {
      const points = [];
      for (let i = 0; i <= Math.min(t, run.length - 1); i++) points.push(place(run.position(i)));
      polyline(ctx, points, lineColor(run.optimizer.color), { width: 2, dash: DASHES[name], edge: casing(run.optimizer.color) });
    }
    ring(ctx, place(about.start));
    for (const [name, run] of Object.entries(sides)) {
      const now = Math.min(t, run.length - 1);
      const at = place(run.position(now));
      const color = lineColor(run.optimizer.color);
      if (t < run.length) {
        const g = run.gradient(now), d = run.direction(now);
        const unit = (0.2 * side) / Math.max(Math.hypot(...g), Math.hypot(...d), 1e-300);
        if (run.optimizer.memory) arrow(ctx, at, [-d[0] * unit, d[1] * unit], color, { edge: casing(run.optimizer.color) });
        arrow(ctx, at, [-g[0] * unit, g[1] * unit], theme.ink, { width: 1.6, hollow: true });
      }
      marker(ctx, at, name, color);
    }
    ctx.restore();
  }
}

function star(ctx, [x, y], size = 8) {
  ctx.beginPath();
  for (let i = 0; i < 10; i++) {
    const r = i % 2 ? size * 0.42 : size, a = (i * Math.PI) / 5 - Math.PI / 2;
    ctx.lineTo(x + r * Math.cos(a), y + r * Math.sin(a));
  }
  ctx.closePath();
  ctx.fillStyle = theme.ink;
  ctx.fill();
  ctx.lineWidth = 1.5;
  ctx.strokeStyle = theme.panel;
  ctx.stroke();
}

function ring(ctx, [x, y]) {
  ctx.beginPath();
  ctx.arc(x, y, 4, 0, 2 * Math.PI);
  ctx.fillStyle = theme.panel;
  ctx.fill();
  ctx.lineWidth = 1.5;
  ctx.strokeStyle = theme.ink;
  ctx.stroke();
}
