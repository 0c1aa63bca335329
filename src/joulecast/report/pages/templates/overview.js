// Draws every chart from the JSON beside it; says in its place when one cannot be drawn.
(function () {
  "use strict";
  const ready = [];
  for (const chart of document.querySelectorAll(".chart")) {
    const spec = JSON.parse(chart.querySelector("script").textContent);
    const place = chart.querySelector(".drawn");
    const drawn = vegaEmbed(place, spec, {
      actions: false,
      renderer: "svg",
      config: config,
      mode: "vega-lite",
    }).then(function () {
      // The chart has its text alternative; Vega names its groups' roles and tells nothing of them.
      place.querySelector("svg").setAttribute("aria-hidden", "true");
    }).catch(function (error) {
      place.textContent = "This chart cannot be drawn: " + error.message;
      console.error(error);
    });
    ready.push(drawn);
  }
  Promise.all(ready).then(function () {
    performance.mark("charts-drawn");
    document.documentElement.dataset.drawn = "yes";
  });
  const closed = new Set();
  function open_all() {
    for (const details of document.querySelectorAll("details:not([open])")) {
      closed.add(details);
      details.open = true;
    }
  }
  function close_again() {
    closed.forEach((details) => (details.open = false));
    closed.clear();
  }
  addEventListener("beforeprint", open_all);
  addEventListener("afterprint", close_again);
  matchMedia("print").addEventListener("change", (event) => (event.matches ? open_all() : close_again()));
})();
