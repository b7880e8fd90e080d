"use strict";
// Draws the figures when they come into view, recolours them with the page's scheme, and sorts tables.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const { inks, figures } = read("figures");
  const root = document.documentElement;
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map(); // element -> id of its figure
  const hidden = new Map(); // id -> legend groups that are off
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : media.matches);
  let printing = false;

  const THEMES = {
    light: { text: "#1c212b", axis: "#566072", grid: "#e3e7ee", page: "#ffffff" },
    dark: { text: "#e6e9ef", axis: "#a4adbd", grid: "#323a48", page: "#181c24" },
  };
  const theme = () => THEMES[isDark() && !printing ? "dark" : "light"];

  // "@3": the third ink; "@3/0.16": a wash of it; "~text": a colour of the page.
  const colour = (text) => {
    if (text[0] === "~") return theme()[text.slice(1)];
    const [index, opacity] = text.slice(1).split("/");
    const hex = inks[Number(index)][isDark() && !printing ? 1 : 0];
    if (!opacity) return hex;
    const part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${opacity})`;
  };
  const resolved = (value) => {
    if (typeof value === "string") return /^(@\d+(\/[\d.]+)?|~(text|axis|grid|page))$/.test(value) ? colour(value) : value;
    if (Array.isArray(value)) return value.map(resolved);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolved(v)]));
    return value;
  };

  // Long titles get another line rather than being cut.
  const wrapped = (text, room) => {
    const lines = [""];
    for (const part of text.split(" ")) {
      if (lines.at(-1) && lines.at(-1).length + part.length + 1 > room) lines.push("");
      lines[lines.length - 1] += (lines.at(-1) ? " " : "") + part;
    }
    return lines;
  };

  const layoutOf = (figure, width) => {
    const colours = theme();
    const font = { family: 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif', size: 13, color: colours.text };
    const axis = (own) => ({
      gridcolor: colours.grid, linecolor: colours.axis, zerolinecolor: colours.grid, tickcolor: colours.axis,
      showline: true, ticks: "outside", ticklen: 4, tickfont: { size: 12 }, ...own,
      title: { ...own.title, font: { size: 13 }, standoff: 8 },
    });
    const own = resolved(figure.layout);
    const narrow = width < 480;
    const layout = {
      ...own, font, width, height: own.height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: narrow ? 46 : 58, r: 14, t: 10, b: 48, ...own.margin }, showlegend: false, hovermode: "closest",
      xaxis: axis(own.xaxis), yaxis: axis(own.yaxis), barmode: "overlay",
      hoverlabel: { font: { size: 12 } }, dragmode: "zoom", uirevision: "keep",
    };
    const labels = own.yaxis.categoryarray ? 7 * Math.max(...own.yaxis.categoryarray.map((label) => label.length)) : 20;
    const lines = wrapped(own.xaxis.title.text, Math.max(16, (width - labels - 40) / 7));
    layout.xaxis.title.text = lines.join("<br>");
    layout.margin.b += 17 * (lines.length - 1);
    layout.height += 17 * (lines.length - 1);
    return layout;
  };

  // A column of numbers at the right of a forest of rows, where there is room for it.
  const withNumbers = (data, layout, width) => {
    const numbers = data.find((trace) => trace.meta === "numbers");
    if (!numbers) return data;
    const letters = Math.max(...numbers.text.map((text) => text.length));
    const labels = Math.max(...numbers.y.map((text) => text.length)) * 7 + 30;
    const share = (letters * 7.2 + 8) / Math.max(1, width - labels - 30);
    if (share > 0.45) return data.filter((trace) => trace !== numbers);
    layout.xaxis.domain = [0, 1 - share];
    layout.xaxis2 = { domain: [1 - share, 1], range: [0, 1], visible: false, fixedrange: true, anchor: "y" };
    return data;
  };

  const legendOf = (figure, id, element) => {
    const box = document.createElement("div");
    box.className = "legend";
    const dashes = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3" };
    const paint = () => {
      box.replaceChildren();
      for (const entry of figure.legend) {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", String(!hidden.get(id).has(entry.group)));
        button.innerHTML = `<svg width="28" height="10" aria-hidden="true"><line x1="0" y1="5" x2="28" y2="5" stroke="${colour(entry.ink)}" stroke-width="${entry.width}" stroke-dasharray="${dashes[entry.dash] || ""}"/></svg>`;
        button.append(entry.name);
        button.addEventListener("click", () => {
          const off = hidden.get(id);
          if (!off.delete(entry.group)) off.add(entry.group);
          draw(element, id);
        });
        box.append(button);
      }
    };
    return { box, paint };
  };

  const legends = new Map();
  const draw = (element, id) => {
    const figure = figures[id];
    if (!hidden.has(id)) hidden.set(id, new Set(figure.legend.filter((entry) => !entry.shown).map((entry) => entry.group)));
    if (figure.legend.length > 1 && !legends.has(id)) {
      const legend = legendOf(figure, id, element);
      element.after(legend.box);
      legends.set(id, legend);
    }
    if (legends.has(id)) legends.get(id).paint();
    const width = element.clientWidth;
    const layout = layoutOf(figure, width);
    const off = hidden.get(id);
    const data = withNumbers(
      resolved(figure.data).map((trace) => ({ ...trace, visible: trace.legendgroup === undefined || !off.has(trace.legendgroup) })),
      layout, width);
    drawn.set(element, id);
    element.dataset.width = String(width);
    const config = { displaylogo: false, responsive: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset+autosize" };
    return Plotly.react(element, data, layout, config).then(() => { element.dataset.drawn = "yes"; });
  };

  const elements = [...document.querySelectorAll(".plot[data-figure]")];
  const drawAll = () => Promise.all(elements.map((element) => drawn.has(element) ? null : draw(element, element.dataset.figure)));
  const redraw = () => Promise.all([...drawn].map(([element, id]) => draw(element, id)));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) {
        watcher.unobserve(entry.target);
        draw(entry.target, entry.target.dataset.figure);
      }
    }
  }, { rootMargin: "700px" });
  for (const element of elements) {
    const figure = figures[element.dataset.figure];
    element.style.minHeight = `${figure.layout.height}px`;
    watcher.observe(element);
  }
  window.critgradReport = { drawAll, redraw, count: elements.length };

  media.addEventListener("change", redraw);
  let pause = 0;
  window.addEventListener("resize", () => {
    clearTimeout(pause);
    pause = setTimeout(() => {
      for (const [element, id] of drawn) if (Number(element.dataset.width) !== element.clientWidth) draw(element, id);
    }, 120);
  });
  window.addEventListener("beforeprint", () => { printing = true; drawAll(); redraw(); });
  window.addEventListener("afterprint", () => { printing = false; redraw(); });

  const toggle = document.getElementById("theme");
  const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; toggle.setAttribute("aria-label", `${toggle.textContent} page`); };
  toggle.hidden = false;
  toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); redraw(); });
  media.addEventListener("change", name);
  name();

  // Tables: click a heading to sort by it, again to turn the order round; empty cells stay last.
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
    const text = cell.textContent.trim();
    return text === "" || text === "-" ? null : text;
  };
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  const sortBy = (head) => {
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].map((row, index) => ({ row, index, value: valueOf(row, head.cellIndex) }));
    rows.sort((a, b) => {
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null) || a.index - b.index;
      return (up ? 1 : -1) * compare(a.value, b.value) || a.index - b.index;
    });
    body.append(...rows.map((entry) => entry.row));
  };
  for (const head of document.querySelectorAll("table.sortable th")) {
    head.addEventListener("click", () => sortBy(head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sortBy(head); }
    });
  }
})();
