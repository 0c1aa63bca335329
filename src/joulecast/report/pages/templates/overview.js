// Numbers of a mark on hovering, touching or by arrow keys; networks on and off; tables for a reader's own work and prices; a
// hint where a table is wider than its place.
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
// The tables for a reader's own work and prices, in the words that the page was written with (joulecast.quantities).
const DASH = "—";
// No line ends between a number and its unit or currency.
const whole = (text) => text.replace(/(?<=\d) (?=(?:%|[smhdgt]|[mµ]s|min|[mkMG]?J|[kMG]?Wh|W|[mk]g|[KMG]iB)(?!\w))|(?<=\b[A-Z]{3}) (?=\d)/g, "\u00a0");
const known = (value) => Number.isFinite(value);
const digits = (value) => {
  const size = value ? Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3))))) : 2;
  const places = Math.min(20, Math.max(0, 2 - size));
  return Number(value.toPrecision(3)).toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
};
const together = (values, units) => {
  const first = Math.abs(values.find(known) ?? 0);
  const [size, unit] = units.find(([least]) => first >= least) ?? units.at(-1);
  return values.map((value) => known(value) ? `${digits(value / size)} ${unit}` : DASH);
};
const lasting = (value) => {
  const whole = Math.round(value), minutes = Math.floor(whole / 60), hours = Math.floor(whole / 3600), days = Math.floor(whole / 86400);
  const parts = hours < 1 ? [[minutes, "min"], [whole % 60, "s"]] : days < 2 ? [[hours, "h"], [minutes % 60, "min"]] : [[days, "d"], [hours % 24, "h"]];
  return parts.filter(([count]) => count).map(([count, unit]) => `${count.toLocaleString("en-US")} ${unit}`).join(" ") || "0 s";
};
const times = (values) => Math.max(0, ...values.filter(known)) < 120
  ? together(values, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) : values.map((value) => known(value) ? lasting(value) : DASH);
const joules = (values) => together(values, [[1e9, "GJ"], [1e6, "MJ"], [1e3, "kJ"], [1, "J"], [1e-3, "mJ"]]);
const wattHours = (values) => together(values.map((value) => known(value) ? value / 3600 : value), [[1e9, "GWh"], [1e6, "MWh"], [1e3, "kWh"], [1, "Wh"]]);
const masses = (values) => together(values.map((value) => known(value) ? 1e3 * value : value), [[1e6, "t"], [1e3, "kg"], [1, "g"], [1e-3, "mg"]]);
const coins = (value) => {
  const places = value >= 1000 ? 0 : value >= 0.1 || !value ? 2 : 1 - Math.floor(Math.log10(value));
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
};
const withRange = ([value, low, high]) => {
  if (low === DASH || high === DASH) return value;
  const currency = low.split(" ")[0] + " ";
  if (!/^\d/.test(currency)) return `${value} (${low.slice(currency.length)} to ${high.slice(currency.length)})`;
  const unit = " " + low.split(" ").at(-1);
  const alike = low.split(" ").length === 2 && high.split(" ").length === 2 && high.endsWith(unit);
  return `${value} (${alike ? low.slice(0, -unit.length) : low} to ${high})`;
};
const own = document.getElementById("own");
if (own) {
  const number = (text) => text === "" ? null : Number(text);
  const rates = { node: number(own.dataset.nodeHour), gpu: number(own.dataset.gpuHour) };
  const tables = [...document.querySelectorAll("table:has(tr[data-amounts])")].map((table) => ({
    table, first: table.innerHTML, rows: [...table.querySelectorAll("tr[data-amounts]")].map((row) => JSON.parse(row.dataset.amounts)),
  }));
  // The factor from a setting's own work: whole steps, where it has steps.
  const factor = (row, samples) => {
    if (!samples || row.unit !== "samples") return 1;
    const steps = (work) => row.batch ? Math.ceil(work / row.batch - 1e-9) : work;
    return steps(samples) / steps(row.work);
  };
  const costs = (row, times_, energies, given) => times_.map((seconds, end) => {
    const joule = energies[end], rented = rates.node !== null || rates.gpu !== null;
    if (given.price === null && !rented) return null;
    if ((given.price !== null && !known(joule)) || (rented && !known(seconds))) return null;
    let paid = (joule ?? 0) / 3.6e6 * given.pue * (given.price ?? 0);
    for (const [rate, count] of [[rates.node, row.nodes], [rates.gpu, row.gpus]]) {
      if (rate === null) continue;
      if (!known(count)) return null;
      paid += seconds / 3600 * count * rate;
    }
    return paid;
  });
  const cells = (row, given, energyWords) => {
    const by = factor(row, given.samples), scaled = (values) => values.map((value) => known(value) ? value * by : null);
    const time = scaled(row.time_s), energy = scaled(row.energy_j), paid = costs(row, time, energy, given);
    const carbon = energy.map((value) => given.co2 === null || !known(value) ? null : value / 3.6e6 * given.pue * given.co2 / 1e3);
    const [timeWords, energies] = [times(time), energyWords(energy)];
    const priced = (words) => words[0] === DASH || !row.is_estimated ? withRange(words) : `${withRange(words)}, estimated power`;
    const money = paid.map((value) => known(value) ? `${own.dataset.currency} ${coins(value)}` : DASH);
    return {
      "time": withRange(timeWords), "energy": known(energy[0]) ? withRange(energies) : null,
      "cost": given.price === null ? withRange(money) : priced(money), "CO2e": priced(masses(carbon)),
    };
  };
  const add = (row, name, tag, text) => {
    const cell = document.createElement(tag);
    cell.textContent = whole(text);
    cell.dataset.label = name;
    cell.dataset.shows = name;
    row.append(cell);
  };
  const renamed = (table, from, to) => {
    const walker = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) walker.currentNode.data = walker.currentNode.data.replaceAll(from, to);
  };
  const show = () => {
    const given = Object.fromEntries(["samples", "price", "co2", "pue"].map((name) => [name, number(own.elements[name].value)]));
    given.pue ??= 1;
    if (!own.checkValidity()) return;
    for (const { table, first, rows } of tables) {
      table.innerHTML = first;
      const least = Math.min(...rows.map((row) => known(row.energy_j[0]) ? row.energy_j[0] * factor(row, given.samples) : Infinity));
      const much = table.classList.contains("cards");
      const perRow = (values) => Math.max(0, ...values.filter(known)) < 3.6e3 ? joules(values) : wattHours(values);
      const words = much ? perRow : least >= 3.6e3 && known(least) ? wattHours : joules;
      const head = table.querySelector("thead tr");
      const wanted = [["cost", given.price !== null], ["CO2e", given.co2 !== null]].filter(([name, on]) => on && !table.querySelector(`[data-shows="${name}"]`));
      for (const [name] of wanted) add(head, name, "th", name);
      [...table.querySelectorAll("tr[data-amounts]")].forEach((line, place) => {
        const found = cells(rows[place], given, words);
        for (const cell of line.querySelectorAll("[data-shows]")) cell.textContent = whole(found[cell.dataset.shows] ?? cell.textContent);
        for (const [name] of wanted) add(line, name, "td", found[name]);
      });
      const works = new Set(rows.filter((row) => row.unit === "samples").map((row) => row.work));
      if (given.samples && works.size === 1) {
        const [work] = works;
        renamed(table, `${work.toLocaleString("en-US")} samples`, `${given.samples.toLocaleString("en-US")} samples`);
      }
    }
    const price = given.price === null ? "" : ` ${own.dataset.currency} ${given.price} a kWh,`;
    const carbon = given.co2 === null ? "" : ` ${given.co2} g CO2e a kWh,`;
    const work = given.samples ? `${given.samples.toLocaleString("en-US")} samples, in whole steps` : "the work that they name";
    document.getElementById("own-says").textContent = `The tables are for ${work};${price}${carbon} PUE ${given.pue}. Energy is of the nodes; money and CO2 are of the building. Charts, texts and the choice of a setting stay as they were written.`;
  };
  own.addEventListener("input", show);
  own.addEventListener("submit", (event) => event.preventDefault());
  own.addEventListener("reset", () => {
    for (const { table, first } of tables) table.innerHTML = first;
    document.getElementById("own-says").textContent = "";
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
