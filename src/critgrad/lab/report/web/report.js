"use strict";
// Figures tell the values under the pointer, switch lines off and on, and zoom; tables are sorted; the page turns dark and light.
(() => {
  const root = document.documentElement;
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : media.matches);

  const make = (svg, name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return svg.appendChild(element);
  };
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  for (const plot of document.querySelectorAll(".plot")) {
    const svg = plot.querySelector("svg");
    const whole = svg.getAttribute("viewBox");
    const entries = (number) => svg.querySelectorAll(`[data-entry="${number}"]`);
    const place = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let points = null; // [entry of the legend, x, y, text]; read at the first question
    let dot = null;
    let drag = null; // where it began, and its rectangle

    const nearest = (at) => {
      points ??= JSON.parse(plot.querySelector("script").textContent);
      let best = null;
      let least = 30 ** 2;
      for (const point of points) {
        const far = (point[1] - at.x) ** 2 + (point[2] - at.y) ** 2;
        const seen = far < least && (point[0] === null || !entries(point[0])[0]?.hasAttribute("display"));
        if (seen) [best, least] = [point, far];
      }
      return best;
    };
    const tell = (event) => {
      const found = nearest(place(event));
      tip.hidden = !found;
      dot?.remove();
      dot = null;
      if (!found) return;
      dot = make(svg, "circle", { class: "dot", cx: found[1], cy: found[2], r: 4 });
      tip.textContent = found[3];
      const left = Math.min(event.clientX + 14, root.clientWidth - tip.offsetWidth - 6);
      tip.style.transform = `translate(${Math.max(4, left)}px, ${event.clientY + 16}px)`;
    };
    const corners = (a, b) => [Math.min(a.x, b.x), Math.min(a.y, b.y), Math.abs(a.x - b.x), Math.abs(a.y - b.y)];
    svg.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.pointerType === "mouse") drag = { from: place(event), box: null };
    });
    svg.addEventListener("pointermove", (event) => {
      if (!drag) return tell(event);
      const [x, y, width, height] = corners(drag.from, place(event));
      drag.box?.remove();
      drag.box = make(svg, "rect", { class: "zoom", x, y, width, height });
    });
    svg.addEventListener("pointerup", (event) => {
      if (!drag) return;
      const box = corners(drag.from, place(event));
      drag.box?.remove();
      drag = null;
      if (box[2] > 12 && box[3] > 12) svg.setAttribute("viewBox", box.join(" "));
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; dot?.remove(); drag?.box?.remove(); drag = null; });
    svg.addEventListener("dblclick", () => svg.setAttribute("viewBox", whole));

    for (const button of plot.parentElement.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => {
        const off = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!off));
        for (const line of entries(button.dataset.entry)) off ? line.setAttribute("display", "none") : line.removeAttribute("display");
      });
    }
  }

  const toggle = document.getElementById("theme");
  const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; toggle.setAttribute("aria-label", `${toggle.textContent} page`); };
  toggle.hidden = false;
  toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
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
