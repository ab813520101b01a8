/* What runs in the browser: ticks, address, theme, keyboard, ages. */
(function () {
  "use strict";
  const { charts } = window.lldscope;
  const HIDDEN = 15; /* ticks of a hidden tab of which one is asked: every half minute */
  let paused = false;
  let open = 0; /* questions that the server has not answered yet */
  const ask = window.fetch;
  window.fetch = function (address, ...rest) {
    const answer = ask.call(this, address, ...rest);
    if (!String(address.url || address).includes("_dash-update-component")) return answer;
    open += 1;
    return answer.finally(() => { open -= 1; });
  };
  const none = () => window.dash_clientside.no_update;
  const fired = () => window.dash_clientside.callback_context.triggered || [];

  function address(changes) {
    const url = new URL(location.href);
    for (const [key, value] of Object.entries(changes)) {
      url.searchParams.delete(key);
      for (const one of [value].flat()) if (one) url.searchParams.append(key, one);
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    lldscope: {
      /* A tick reaches the server only if it is not busy, and seldom if nobody is looking. */
      tick: (n) => (paused || open || (document.hidden && n % HIDDEN) ? none() : n),

      /* A page of words looks again. */
      retry: ([n]) => (!n || paused || document.hidden || open ? none()
        : [location.pathname, location.search, Date.now()]),

      /* The view in the address, so that it can be shared. */
      address: function (x, mean, zoom, shown, names) {
        const range = zoom && zoom.x === x ? zoom.range : null;
        const exact = range && range.map((v) => Number(v.toPrecision(7))).join(",");
        const hide = shown.length ? names.filter((name) => !shown[0].includes(name)) : [];
        address({ x: x === "step" ? null : x, mean: mean === 10 ? null : mean, zoom: exact, hide });
        return none();
      },

      /* Which runs the list shows and in which order; the address keeps it. */
      choice: function (q, verdict, by, clicks, current) {
        const next = Object.assign({}, current, { q: q || "", verdict, by: by[0] || "" });
        for (const { prop_id, value } of fired()) {
          if (!value || !prop_id.includes('"sort"')) continue;
          const key = JSON.parse(prop_id.slice(0, prop_id.lastIndexOf("."))).index;
          next.sort = current.sort === key ? "-" + key : key;
        }
        for (const head of document.querySelectorAll("th[data-key]")) {
          const ours = next.sort.replace(/^-/, "") === head.dataset.key;
          const way = next.sort.startsWith("-") ? "descending" : "ascending";
          head.setAttribute("aria-sort", ours ? way : "none");
        }
        const same = JSON.stringify(next) === JSON.stringify(current);
        if (!same) next.page = "";  // other runs, or another order: from the first page
        address(Object.assign({}, next, { sort: next.sort === "run" ? null : next.sort }));
        return same ? none() : next;
      },

      reload: () => location.reload(),

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

      /* The chosen runs, also those that a filter hides, and the link that compares them. */
      picked: function (values, ids, before) {
        const seen = ids.map((id) => id.index);
        const names = before.filter((name) => !seen.includes(name)).concat(values.flat());
        const href = "/compare?" + names.map((name) => "run=" + encodeURIComponent(name)).join("&");
        const many = names.length > 1;
        return [names, href, many ? "button primary" : "button disabled",
          many ? `Compare ${names.length} runs` : "Compare"];
      },
    },
  });

  /* Ages go on between answers of the server; the words are those of figures/wording.py. */
  const UNITS = [[90, 1, "s"], [5400, 60, "min"], [129600, 3600, "h"], [Infinity, 86400, "days"]];
  setInterval(() => {
    if (paused || document.hidden) return;
    for (const span of document.querySelectorAll("[data-time]")) {
      const age = Math.max(0, Date.now() / 1000 - Number(span.dataset.time));
      const [, size, unit] = UNITS.find(([limit]) => age < limit);
      const text = `${Math.round(age / size)} ${unit} ago`;
      if (span.textContent !== text) span.textContent = text;
    }
  }, 1000);

  function nextOf(id) {
    const options = [...document.querySelectorAll(`#${id} input`)];
    const at = options.findIndex((o) => o.checked);
    if (options.length) options[(at + 1) % options.length].click();
  }
  const press = (id) => () => { const b = document.getElementById(id); if (b) b.click(); };
  const KEYS = {
    p: [press("pause"), "pause, go on"],
    "/": [() => { const f = document.getElementById("find"); if (f) f.focus(); }, "filter the runs"],
    ArrowLeft: [() => charts.move(-0.25, 1), "earlier"],
    ArrowRight: [() => charts.move(0.25, 1), "later"],
    "+": [() => charts.move(0, 0.5), "zoom in"],
    "-": [() => charts.move(0, 2), "zoom out"],
    0: [charts.showAll, "the whole run"],
    x: [() => nextOf("x"), "next x axis"],
    m: [() => nextOf("mean"), "next trailing mean"],
    t: [press("theme"), "light, dark"],
    "?": [help, "these keys"],
  };
  function help() {
    let box = document.getElementById("keys");
    if (!box) {
      box = document.createElement("dialog");
      box.id = "keys";
      box.className = "card";
      const list = document.createElement("dl");
      for (const [key, [, means]] of Object.entries(KEYS)) {
        for (const [tag, text] of [["dt", key.replace("Arrow", "Arrow ")], ["dd", means]]) {
          list.append(Object.assign(document.createElement(tag), { textContent: text }));
        }
      }
      box.append(Object.assign(document.createElement("h2"), { textContent: "Keys" }), list);
      document.body.append(box);
    }
    if (box.open) box.close();
    else box.showModal();
  }

  document.addEventListener("click", (event) => {
    if (event.target.id === "help") help();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const own = event.target.closest("input, textarea, select, [role=radiogroup]");
    if (own && (event.key.startsWith("Arrow") || !["radio", "checkbox"].includes(own.type))) return;
    if (event.key.startsWith("Arrow") && !charts.all().length) return;
    if (!KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key][0]();
  });
})();
