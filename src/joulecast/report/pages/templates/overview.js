// Numbers of a mark on hovering, touching or by arrow keys; networks on and off; a hint where a table is wider than its place.
"use strict";
const tip = document.getElementById("tip");
function show(mark) {
  const lines = mark.dataset.tip.split(" · ").map((text) => {
    const line = document.createElement("div");
    line.textContent = text;
    return line;
  });
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const at = mark.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const left = at.left + at.width / 2 - size.width / 2;
  const above = at.top - size.height - 8;
  tip.style.left = Math.max(4, Math.min(left, innerWidth - size.width - 4)) + "px";
  tip.style.top = (above > 4 ? above : at.bottom + 8) + "px";
}
function hide() { tip.hidden = true; }
const seen = (mark) => mark.getClientRects().length > 0 && !mark.closest(".off");
for (const chart of document.querySelectorAll(".chart")) {
  const marks = [...chart.querySelectorAll("[data-tip]")].filter((m) => !m.closest(".mark-line, .mark-area"));
  const points = marks.filter((m) => m.closest(".mark-symbol"));
  const near = (event) => {
    const under = event.target.closest("[data-tip]");
    if (marks.includes(under)) return under;
    let found = null, least = 24;
    for (const mark of points.filter(seen)) {
      const box = mark.getBoundingClientRect();
      const far = Math.hypot(event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2);
      if (far < least) [found, least] = [mark, far];
    }
    return found;
  };
  const point = (event) => { const mark = near(event); mark ? show(mark) : hide(); };
  chart.addEventListener("pointermove", point);
  chart.addEventListener("pointerdown", point);
  // A finger leaves when it is lifted: what it tapped stays until the next tap.
  chart.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
  chart.addEventListener("blur", hide);
  let place = -1;
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    const shown = marks.filter(seen);
    if (!step || !shown.length) return;
    event.preventDefault();
    place = (Math.max(place, step > 0 ? -1 : 0) + step + shown.length) % shown.length;
    show(shown[place]);
  });
}
addEventListener("pointerdown", (event) => { if (!event.target.closest(".chart")) hide(); });
addEventListener("scroll", hide, { passive: true });
const boxes = [...document.querySelectorAll("[name=network]")];
for (const box of boxes) {
  box.addEventListener("change", () => {
    document.getElementById("no-network").hidden = boxes.some((one) => one.checked);
    const off = new Set(boxes.filter((one) => !one.checked).map((one) => one.value));
    for (const mark of document.querySelectorAll("#answer [data-tip^='training: ']")) {
      mark.classList.toggle("off", off.has(mark.dataset.tip.split(" · ")[0].slice(10)));
    }
    for (const row of document.querySelectorAll("#answer tr[data-network]")) {
      row.classList.toggle("off", off.has(row.dataset.network));
    }
  });
}
const hint = (grid) => {
  const box = grid.querySelector(".scroll");
  const more = box.scrollWidth - box.clientWidth - box.scrollLeft > 4;
  box.classList.toggle("more", more);
  grid.querySelector(".hint").hidden = box.scrollWidth <= box.clientWidth + 4;
};
const resized = new ResizeObserver((all) => all.forEach((one) => hint(one.target.closest(".grid"))));
for (const box of document.querySelectorAll(".grid > .scroll")) {
  resized.observe(box);
  box.addEventListener("scroll", () => hint(box.closest(".grid")), { passive: true });
}
const closed = new Set();
const print = (on) => {
  for (const details of document.querySelectorAll("details")) {
    if (on && !details.open) { closed.add(details); details.open = true; }
    if (!on && closed.has(details)) details.open = false;
  }
  if (!on) closed.clear();
};
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
matchMedia("print").addEventListener("change", (event) => print(event.matches));
