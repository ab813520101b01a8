/* What can be done with one chart, and charts that are added; all of it stands in the address. */
(function () {
  "use strict";
  const params = () => new URL(location.href).searchParams;

  function change(name, value, on) {
    const url = new URL(location.href);
    const others = url.searchParams.getAll(name).filter((v) => v !== value);
    url.searchParams.delete(name);
    for (const v of on ? [...others, value] : others) url.searchParams.append(name, v);
    return url;
  }

  /* The lowest and highest 1 % of what a chart draws on its left axis are out of sight. */
  function clipped(data) {
    const values = data.filter((t) => t.yaxis !== "y2" && t.visible !== false)
      .flatMap((t) => t.y).filter(Number.isFinite).sort((a, b) => a - b);
    if (values.length < 20) return null;
    const at = (share) => values[Math.round(share * (values.length - 1))];
    const [low, high] = [at(0.01), at(0.99)];
    const pad = 0.06 * (high - low);
    return pad > 0 ? [low - pad, high + pad] : null;
  }

  /* The y axis of a chart as the address wants it; charts.js asks before it draws. */
  function yaxis(id, figure) {
    const axis = { ...figure.layout.yaxis };
    const log = params().getAll("log").includes(id);
    if (log) Object.assign(axis, { type: "log", range: undefined, autorange: true, exponentformat: "power" });
    const range = params().getAll("clip").includes(id) && clipped(figure.data);
    if (range && log && range[0] > 0) Object.assign(axis, { range: range.map(Math.log10), autorange: false });
    else if (range && !log) Object.assign(axis, { range, autorange: false });
    return axis;
  }
  window.lldscope = Object.assign(window.lldscope || {}, { yaxis });

  function add(key) {
    if (!key || params().getAll("chart").includes(key)) return;
    window.lldscope.pin(key, true);
    const url = change("chart", key, true);
    url.hash = "adding";
    location.assign(url);
    if (url.hash === location.hash) location.reload();
  }

  const TOOLS = {
    log: (id, card) => toggle("log", id, card),
    clip: (id, card) => toggle("clip", id, card),
    full: (id, card) => (document.fullscreenElement ? document.exitFullscreen() : card.requestFullscreen()),
    png: (id, card) => window.Plotly.downloadImage(card.querySelector(".js-plotly-plot"), {
      format: "png", width: 1000, height: 420, scale: 2, filename: id.replace(/[^\w.-]+/g, "-"),
      setBackground: "opaque",
    }),
    drop: (id) => {
      window.lldscope.pin(id, false);
      location.assign(change("chart", id, false));
    },
  };
  function toggle(name, id, card) {
    history.replaceState(history.state, "", change(name, id, !params().getAll(name).includes(id)));
    const chart = card.querySelector(".js-plotly-plot");
    window.lldscope.charts.redraw(chart);
    press();
  }

  /* Buttons say what is on. */
  function press() {
    for (const tools of document.querySelectorAll(".tools")) {
      for (const name of ["log", "clip"]) {
        const button = tools.querySelector(`[data-tool=${name}]`);
        if (!button) continue;
        const on = String(params().getAll(name).includes(tools.dataset.chart));
        if (button.getAttribute("aria-pressed") !== on) button.setAttribute("aria-pressed", on);
      }
    }
  }

  /* Made when they are first opened: [what it does, text, title] of each button, a link for CSV. */
  document.addEventListener("toggle", (event) => {
    const tools = event.target;
    if (!tools.matches(".tools") || !tools.open || tools.children.length > 1) return;
    const box = document.createElement("div");
    for (const [tool, text, title] of JSON.parse(tools.dataset.tools)) {
      const button = document.createElement(tool === "csv" ? "a" : "button");
      Object.assign(button, { className: "button small", textContent: text });
      if (tool === "csv") Object.assign(button, { href: title, download: "" });
      else Object.assign(button, { title }).dataset.tool = tool;
      box.append(button);
    }
    tools.append(box);
    press();
  }, true);

  /* The names of all metrics; a component for each would take the page a millisecond. */
  new MutationObserver(() => {
    const list = document.querySelector("#metrics[data-options]:empty");
    if (!list) return;
    list.append(...JSON.parse(list.dataset.options).map(([value, label]) =>
      Object.assign(document.createElement("option"), { value, label })));
  }).observe(document.documentElement, { childList: true, subtree: true });

  document.addEventListener("click", (event) => {
    if (!event.isTrusted) return; /* a download that Plotly begins */
    const tool = event.target.closest("[data-tool]"), offer = event.target.closest("[data-add]");
    if (offer) add(offer.dataset.add);
    if (tool) {
      const tools = tool.closest(".tools");
      TOOLS[tool.dataset.tool](tools.dataset.chart, tools.closest(".chart"));
    } else for (const open of document.querySelectorAll(".tools[open]")) {
      if (!open.contains(event.target)) open.open = false;
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "add-chart") return;
    const known = [...document.querySelectorAll("#metrics option")].map((o) => o.value);
    if (known.includes(event.target.value)) add(event.target.value);
  });
})();
