/* What runs in the browser: clientside callbacks, keyboard, ages. */
(function () {
  "use strict";
  const { charts } = window.lldscope;
  const HIDDEN = 15; /* ticks of a hidden tab of which one is asked: every half minute */
  const PATIENCE = 30_000; /* ms until an answer is given up */
  let paused = false, latest = null, asked = 0, waits = 0;
  const none = () => window.dash_clientside.no_update;
  const set = (id, data) => window.dash_clientside.set_props(id, { data });
  const fired = () => window.dash_clientside.callback_context.triggered || [];
  const indexOf = (prop) => JSON.parse(prop.slice(0, prop.lastIndexOf("."))).index;

  function address(changes) {
    const url = new URL(location.href);
    for (const [key, value] of Object.entries(changes)) {
      url.searchParams.delete(key);
      for (const one of [value].flat()) if (one) url.searchParams.append(key, one);
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url);
  }

  /* A component of Dash as data. */
  const button = (text, index, title) => ({ type: "Button", namespace: "dash_html_components",
    props: { children: text, id: { type: "add", index }, className: "button small", title } });

  Object.assign(window.dash_clientside.lldscope, {
      /* A page has come. React shows it a little later; then what it gives as data becomes elements,
         and its anchor is looked up. */
      arrived(page) {
        const id = page.props["data-page"];
        const wait = () => {
          if (latest !== id) return;
          if (!document.querySelector(`[data-page="${id}"]`)) return setTimeout(wait, 20);
          asked = 0;
          window.lldscope.fill();
        };
        latest = id;
        wait();
      },

      /* A tick reaches the server seldom if nobody is looking, and not while it answers the one
         before. Dash does not say when a server has gone without an answer. */
      tick(n, busy) {
        waits = busy ? waits || Date.now() : 0;
        if (paused || (document.hidden && n % HIDDEN)) return none();
        if (busy && Date.now() - waits < PATIENCE) return none();
        waits = 0;
        return n;
      },

      /* A page of words looks again, but not while an answer is under way: Dash would drop that, and
         where answers take longer than the clock, no page would ever come. */
      retry([n]) {
        if (!n || paused || document.hidden || Date.now() - asked < PATIENCE) return none();
        asked = Date.now();
        return `${location.href}#${n}`;
      },

      /* The view in the address, so that it can be shared. */
      address(x, mean, zoom, axes, shown_charts, shown, names, defaults) {
        const range = zoom && zoom.x === x ? zoom.range : null;
        const exact = range && range.map((v) => Number(v.toPrecision(7))).join(",");
        const hide = shown.length ? names.filter((name) => !shown[0].includes(name)) : [];
        const chart = shown_charts.filter((key) => !defaults.includes(key));
        address({ x: x === "step" ? null : x, mean: mean === 10 ? null : mean, zoom: exact, hide,
          chart, log: axes.log, clip: axes.clip });
        for (const [name, ids] of Object.entries(axes)) {
          for (const tool of document.querySelectorAll(".tools button")) {
            const [kind, ...key] = JSON.parse(tool.id).index.split(" ");
            if (kind === name) tool.setAttribute("aria-pressed", ids.includes(key.join(" ")));
          }
        }
      },

      /* Charts that this browser has added are on other pages, too, unless the address names some. */
      pinned(at, pins) {
        if (!document.getElementById("adding") || !Array.isArray(pins)) return;
        if (new URL(location.href).searchParams.has("chart")) return;
        const { data } = window.dash_component_api.getLayout("charts").props;
        const more = pins.filter((key) => typeof key === "string" && !data.includes(key));
        if (more.length) set("charts", [...data, ...more]);
      },

      /* The buttons of charts, and those that add one. */
      tools(tools, adds, shown, axes, defaults, pins) {
        const [one] = fired();
        if (!one || !one.value) return;
        const index = indexOf(one.prop_id);
        if (one.prop_id.includes('"add"')) {
          const keys = index.startsWith("[") ? JSON.parse(index) : [index];
          const more = keys.filter((key) => !shown.includes(key));
          set("charts", [...shown, ...more]);
          set("pins", [...new Set([...pins, ...more])].slice(-24));
          return;
        }
        const [tool, ...rest] = index.split(" "), key = rest.join(" ");
        const card = document.getElementById(JSON.stringify({ index, type: "tool" })).closest(".chart");
        if (tool === "drop") {
          set("charts", shown.filter((other) => other !== key));
          set("pins", pins.filter((other) => other !== key));
        } else if (tool === "full") {
          if (document.fullscreenElement) document.exitFullscreen();
          else card.requestFullscreen();
        } else if (tool === "png") {
          window.Plotly.downloadImage(card.querySelector(".js-plotly-plot"), { format: "png",
            width: 1000, height: 420, scale: 2, filename: key.replace(/[^\w.-]+/g, "-"),
            setBackground: "opaque" });
        } else {
          const on = axes[tool].includes(key);
          set("axes", { ...axes, [tool]: on ? axes[tool].filter((k) => k !== key) : [...axes[tool], key] });
        }
      },

      /* The metrics whose name holds what was typed or meets it as a regular expression. */
      matches(text, shown, { options, most }) {
        const left = options.filter(([key]) => !shown.includes(key));
        if (!text) return left.filter(([, , offered]) => offered).map(([key, label]) => button(label, key, key));
        let test = (name) => name.toLowerCase().includes(text.toLowerCase());
        try {
          const pattern = new RegExp(text, "i"), part = test;
          test = (name) => part(name) || pattern.test(name);
        } catch (e) { /* no regular expression yet */ }
        const names = left.filter(([key, label]) => test(key) || test(label));
        const parts = [`${names.length} of ${left.length} metrics `];
        if (names.length > 1 && names.length <= most) {
          parts.push(button(`Add all ${names.length}`, JSON.stringify(names.map(([key]) => key))));
        }
        const sections = {};
        for (const [key, label] of names.slice(0, 60)) {
          const prefix = key.replace(/^scalar\//, "").split("/").slice(0, -1).join("/");
          (sections[prefix] = sections[prefix] || []).push(button(label, key, key));
        }
        for (const [prefix, buttons] of Object.entries(sections)) {
          parts.push(...(prefix ? [{ type: "Span", namespace: "dash_html_components",
            props: { children: prefix, className: "key" } }] : []), ...buttons);
        }
        return parts;
      },

      /* Which runs the list shows and in which order; the address keeps it. */
      choice: function (q, verdict, by, clicks, current) {
        const next = Object.assign({}, current, { q: q || "", verdict, by: by[0] || "" });
        for (const { prop_id, value } of fired()) {
          if (!value || !prop_id.includes('"sort"')) continue;
          const key = indexOf(prop_id);
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
    0: [() => charts.show(null), "the whole run"],
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
    for (const open of document.querySelectorAll(".tools[open]")) {
      /* Plotly clicks a link of its own to save a picture. */
      if (event.isTrusted && !open.contains(event.target)) open.open = false;
    }
    const link = event.target.closest("a[href]"); /* to a place on this page: all else stays */
    if (link && link.pathname === location.pathname && link.hash) link.search = location.search;
  });
  /* select[data-address] sets that part of the address. */
  document.addEventListener("change", (event) => {
    const select = event.target.closest("select[data-address]");
    if (!select) return;
    const to = new URL(location.href);
    to.searchParams.delete(select.dataset.address);
    if (select.value) to.searchParams.set(select.dataset.address, select.value);
    location.assign(to);
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
