/* What runs in the browser: clientside callbacks, tools of charts, keyboard, ages. */
(function () {
  "use strict";
  const { change, charts, press, set, stored, view } = window.lldscope;
  const HIDDEN = 15; /* ticks of a hidden tab of which one is asked: every half minute */
  const PATIENCE = 30_000; /* ms until an answer is given up */
  /* Parts of the view that charts depend on. */
  const DRAWING = ["x", "mean", "zoom", "log", "hide", "average"];
  let paused = false, latest = null, asked = 0, waits = 0, typed = 0, drawn = null;
  const none = () => window.dash_clientside.no_update;

  Object.assign(window.dash_clientside.lldscope, {
    /* A page has come. React shows it a little later; then what it gives as data becomes elements,
       and its anchor is looked up. */
    arrived(page) {
      const id = page.props["data-page"];
      const wait = () => {
        if (latest !== id) return;
        if (!document.querySelector(`[data-page="${id}"]`) || document.querySelector("#adding:not(:has(button))")) {
          return setTimeout(wait, 20);
        }
        /* Dash 4.4 gives the focus to a field that screen readers do not see; style.css hides it. */
        const more = document.getElementById("more");
        if (more) more.tabIndex = 0;
        asked = 0;
        drawn = stored("drawing") || view();
        window.dash_clientside.lldscope.viewed(view()); /* somebody may have been quicker */
        window.lldscope.fill();
        press(view());
        window.lldscope.steps.mark();
        window.lldscope.steps.ask();
      };
      latest = id;
      drawn = null;
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

    /* The view has changed: send the server the parts that it needs. */
    viewed(now) {
      if (!drawn) return;
      const differs = (key) => JSON.stringify(drawn[key] || []) !== JSON.stringify(now[key] || []);
      if (DRAWING.some(differs)) set("drawing", now);
      if (differs("step")) window.lldscope.steps.ask();
      drawn = now;
    },

    /* The metrics that have a chart beside the usual ones; the server makes their cards. */
    chosen: (keys) => change({ chart: (keys || []).slice(0, 60) }), /* MOST_ADDED in pages/drawing.py */

    /* Text in the field of the list. The debounce of dcc.Input (Dash 4.4) moves the caret back while
       somebody types. */
    found(text) {
      clearTimeout(typed);
      typed = setTimeout(() => change({ q: [text || ""], page: [] }), 200);
    },

    tell(title) {
      document.title = title;
    },

    pause() {
      paused = !paused;
      document.documentElement.classList.toggle("paused", paused);
      return paused ? "Resume" : "Pause";
    },
  });

  /* The chosen runs of the list, also those that a filter hides, and the link that compares them. */
  function pick(box) {
    const name = box.dataset.pick, before = stored("picks");
    const names = before.includes(name) ? before.filter((one) => one !== name) : [...before, name];
    box.setAttribute("aria-checked", String(names.includes(name)));
    set("picks", names);
    const many = names.length > 1;
    window.dash_clientside.set_props("compare", {
      href: document.getElementById("compare").pathname + "?" + names.map((one) => "run=" + encodeURIComponent(one)).join("&"),
      className: many ? "button primary" : "button disabled",
      children: many ? `Compare ${names.length} runs` : "Compare",
    });
  }

  /* Ages go on between answers of the server, in the words of core/terminal.py. */
  const UNITS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];
  setInterval(() => {
    if (paused || document.hidden) return;
    for (const span of document.querySelectorAll("[data-time]")) {
      const age = Math.max(0, Date.now() / 1000 - Number(span.dataset.time));
      const [, size, unit] = UNITS.find(([limit]) => age < limit);
      const text = `${Math.round(age / size)} ${unit} ago`;
      if (span.textContent !== text) span.textContent = text;
    }
  }, 1000);

  const step = (by) => () => window.lldscope.steps.move(by);
  const KEYS = {
    ArrowLeft: [step(-1), "the step before, in all charts"],
    ArrowRight: [step(1), "the step after"],
    Escape: [() => window.lldscope.steps.choose(null), "no step"],
    "<": [() => charts.move(-0.25, 1), "earlier"],
    ">": [() => charts.move(0.25, 1), "later"],
    "+": [() => charts.move(0, 0.5), "zoom in"],
    "-": [() => charts.move(0, 2), "zoom out"],
    0: [() => charts.show(null), "the whole run"],
    "/": [() => { document.getElementById("find")?.focus(); document.getElementById("more")?.click(); },
      "find runs, or a metric"],
    p: [() => document.getElementById("pause")?.click(), "pause, go on"],
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
    const near = (selector) => event.target.closest(selector);
    if (event.target.id === "help") help();
    if (near("[data-pick]")) pick(near("[data-pick]"));
    if (near("[data-sort]")) {
      const { sort } = near("[data-sort]").dataset, now = (view().sort || ["verdict"])[0];
      change({ sort: [now === sort ? `-${sort}` : sort], page: [] });
      for (const head of document.querySelectorAll("th:has([data-sort])")) {
        const ours = head.contains(near("[data-sort]"));
        head.setAttribute("aria-sort", !ours ? "none" : now === sort ? "descending" : "ascending");
      }
    }
    if (near("[data-shown]")) {
      const runs = [...document.querySelectorAll(".shown-run")].map((one) => one.dataset.set.slice(5));
      change({ hide: near("[data-shown]").dataset.shown === "none" ? runs : [] });
    }
    const link = near("a[href]"); /* to a place on this page: all else stays */
    if (link && link.pathname === location.pathname && link.hash) {
      event.preventDefault();
      history.replaceState(history.state, "", location.pathname + location.search + link.hash);
      window.lldscope.unfold(decodeURIComponent(link.hash.slice(1)));
    }
  });
  /* select[data-address] sets that part of the address. */
  document.addEventListener("change", (event) => {
    const select = event.target.closest("select[data-address]");
    if (!select) return;
    const to = new URL(location.href);
    to.searchParams.delete(select.dataset.address);
    if (select.value) to.searchParams.append(select.dataset.address, select.value);
    location.assign(to);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, .toks")) return;
    if (event.key.startsWith("Arrow") && !document.getElementById("steps")) return;
    if (!KEYS[event.key] || (event.key === "Escape" && document.querySelector("dialog[open]"))) return;
    event.preventDefault();
    KEYS[event.key][0]();
  });
})();
