/* What runs in the browser: ticks, shared zoom and hover, address, theme, keyboard. No data here. */
(function () {
  "use strict";
  let paused = false;
  const none = () => window.dash_clientside.no_update;
  const fired = () => window.dash_clientside.callback_context.triggered || [];

  /* The chart a pattern-matched trigger came from. */
  const charts = () => [...document.querySelectorAll(".graph .js-plotly-plot")];
  const chartOf = (prop) => {
    const index = JSON.parse(prop.slice(0, prop.lastIndexOf("."))).index;
    return charts().find((c) => c.closest(".graph").id.includes(`"index":"${index}"`));
  };

  function address(changes) {
    const url = new URL(location.href);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined) url.searchParams.delete(key);
      else url.searchParams.set(key, value);
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    lldscope: {
      /* A tick reaches the server only if somebody may be looking. */
      tick: (n) => (paused || document.hidden ? none() : n),

      /* The stretch of x that the reader chose in any chart, and its axis; null is all of it. */
      zoom: function (relayouts, x) {
        for (const { value } of fired()) {
          if (!value) continue;
          const range = [value["xaxis.range[0]"], value["xaxis.range[1]"]];
          if (range[0] !== undefined) return { x, range };
          if (value["xaxis.autorange"]) return null;
        }
        return none();
      },

      /* The same x in all charts. */
      hover: function () {
        const trigger = fired()[0];
        if (!trigger || !window.Plotly) return;
        const source = chartOf(trigger.prop_id);
        const point = trigger.value && trigger.value.points && trigger.value.points[0];
        for (const chart of charts()) {
          if (chart === source || !chart._fullLayout) continue;
          if (point) window.Plotly.Fx.hover(chart, { xval: point.x }, ["xy"], true);
          else window.Plotly.Fx.unhover(chart);
        }
      },

      /* The view in the address, so that it can be shared. */
      address: function (x, mean, zoom) {
        const range = zoom && zoom.x === x ? zoom.range : null;
        const exact = range && range.map((v) => Number(v.toPrecision(7))).join(",");
        address({ x: x === "step" ? null : x, mean: mean === 10 ? null : mean, zoom: exact });
        return none();
      },

      pause: function () {
        paused = !paused;
        document.documentElement.classList.toggle("paused", paused);
        return paused ? "Resume" : "Pause";
      },

      theme: function () {
        const root = document.documentElement;
        const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
        const now = root.dataset.theme || (dark ? "dark" : "light");
        root.dataset.theme = now === "dark" ? "light" : "dark";
        try { localStorage.setItem("lldscope-theme", root.dataset.theme); } catch (e) { /* private */ }
      },

      /* The link that compares the chosen runs: address, look, text. */
      picked: function (values) {
        const names = values.flat();
        const href = "/compare?" + names.map((name) => "run=" + encodeURIComponent(name)).join("&");
        const many = names.length > 1;
        return [href, many ? "button primary" : "button disabled",
          many ? `Compare ${names.length} runs` : "Compare"];
      },
    },
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    const id = { p: "pause", t: "theme" }[event.key];
    const button = id && document.getElementById(id);
    if (button) button.click();
  });
})();
