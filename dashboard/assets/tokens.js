/* Pages of responses and tokens: numbers on hover and focus, arrow keys, tidy addresses. No data. */
(function () {
  "use strict";
  const OPTIONS = ".tok[role=option], .map .cell a";

  /* Say the numbers of a token or a cell; a token that was reached stands in the address. */
  function tell(item, keep) {
    const told = document.getElementById("token-status");
    if (told) told.textContent = item.getAttribute("aria-label");
    if (!keep || !item.matches(".tok")) return;
    const url = new URL(location.href);
    url.searchParams.set("mark", item.id);
    history.replaceState(history.state, "", url);
  }

  /* One token of a column, or one cell of the map, is in the order of Tab; the keys move it. */
  function reach(item) {
    const place = item.closest(".words, .map");
    for (const old of place.querySelectorAll("[tabindex='0']")) {
      if (old.matches(OPTIONS)) old.tabIndex = -1;
    }
    item.tabIndex = 0;
    item.focus();
  }

  document.addEventListener("mouseover", (event) => {
    const item = event.target.closest(OPTIONS);
    if (item) tell(item, false);
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches(OPTIONS)) tell(event.target, true);
  });
  document.addEventListener("click", (event) => {
    const token = event.target.closest(".tok[role=option]");
    if (token) return reach(token);
    const link = event.target.closest("[data-token]");
    const named = link && document.getElementById(link.dataset.token);
    if (named) {
      event.preventDefault();
      reach(named);
      named.scrollIntoView({ block: "center" });
    }
  });

  function beside(item, key) {
    const place = item.closest(".words, .map");
    const all = [...place.querySelectorAll(OPTIONS)];
    const at = all.indexOf(item);
    if (key === "Home") return all[0];
    if (key === "End") return all[all.length - 1];
    if (key === "ArrowLeft") return all[at - 1];
    if (key === "ArrowRight") return all[at + 1];
    /* Up and down: the nearest one of another line. */
    const box = item.getBoundingClientRect();
    const middle = box.left + box.width / 2;
    const lines = all.map((other) => [other, other.getBoundingClientRect()]);
    const ahead = lines.filter(([, b]) => (key === "ArrowUp" ? b.bottom <= box.top + 2 : b.top >= box.bottom - 2));
    if (!ahead.length) return null;
    const ends = ahead.map(([, b]) => b.top);
    const line = key === "ArrowUp" ? Math.max(...ends) : Math.min(...ends);
    const near = ahead.filter(([, b]) => Math.abs(b.top - line) < 4);
    const far = ([, b]) => Math.abs(b.left + b.width / 2 - middle);
    return near.reduce((a, b) => (far(b) < far(a) ? b : a))[0];
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    const named = document.querySelector(`[data-key="${CSS.escape(event.key)}"][href]`);
    if (named) return named.click();
    const moves = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
    if (!moves.includes(event.key) || !event.target.matches(OPTIONS)) return;
    event.preventDefault();
    const next = beside(event.target, event.key);
    if (next) reach(next);
  });

  /* From a list of responses, [ and ] and their buttons go on through that list. */
  const LIST = "lldscope-responses";
  const identity = (href) => {
    const url = new URL(href, location.href), one = (key) => url.searchParams.get(key) || "0";
    return [url.pathname, one("step"), one("rank"), one("id")].join(" ");
  };
  document.addEventListener("click", (event) => {
    const row = event.target.closest(".grid .run-link");
    if (!row) return;
    const rows = [...document.querySelectorAll(".grid .run-link")].map((link) => link.href);
    try { sessionStorage.setItem(LIST, JSON.stringify(rows)); } catch (e) { /* private */ }
  });
  function follow() {
    const ways = document.querySelectorAll(".group [data-key], .group .button.disabled");
    if (ways.length !== 2 || ways[0].dataset.listed) return;
    let rows = [];
    try { rows = JSON.parse(sessionStorage.getItem(LIST) || "[]"); } catch (e) { /* private */ }
    const at = rows.map(identity).indexOf(identity(location.href));
    if (at < 0) return;
    const color = new URL(location.href).searchParams.get("color");
    const told = [["Previous in the list", rows[at - 1], "["], ["Next in the list", rows[at + 1], "]"]];
    told.forEach(([text, href, key], i) => {
      const way = document.createElement(href ? "a" : "span");
      way.className = href ? "button" : "button disabled";
      way.textContent = text;
      if (href && color) href += `&color=${encodeURIComponent(color)}`;
      if (href) Object.assign(way, { href, title: `keyboard: ${key}` }).dataset.key = key;
      way.dataset.listed = "yes";
      ways[i].replaceWith(way);
    });
  }

  /* Filters that say nothing do not stand in the address. */
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form.wants");
    if (!form) return;
    event.preventDefault();
    const said = [...new FormData(form)].filter(([, value]) => value !== "");
    location.assign(`${form.getAttribute("action")}?${new URLSearchParams(said)}`);
  });

  /* Elements from data: text stays text. */
  function element(name, look, text) {
    const made = document.createElement(name);
    if (look) made.className = look;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function token([text, label, look, strength, id, first]) {
    const span = element("span", look, text);
    if (strength) span.style.setProperty("--w", strength);
    if (label) {
      span.setAttribute("role", "option");
      span.setAttribute("aria-label", label);
      span.id = id;
      span.tabIndex = first ? 0 : -1;
    }
    return span;
  }

  function cell(told) {
    if (!told) return element("td", "cell none");
    const [look, strength, label, href, first] = told;
    const made = element("td", look);
    if (strength) made.style.setProperty("--w", strength);
    const link = element("a");
    link.href = href;
    link.setAttribute("aria-label", label);
    link.tabIndex = first ? 0 : -1;
    made.append(link);
    return made;
  }

  function map({ rows, ticks }) {
    const body = element("tbody");
    const head = (text) => {
      const made = element("th", "", text);
      made.scope = "row";
      return made;
    };
    for (const [name, cells] of rows) {
      const row = element("tr");
      row.append(head(name), ...cells.map(cell));
      body.append(row);
    }
    const last = element("tr");
    last.append(head("step"), ...ticks.map(([text, span]) => {
      const made = element("td", "tick", text);
      made.colSpan = span;
      return made;
    }));
    body.append(last);
    const table = element("table", "map");
    table.append(body);
    return table;
  }

  /* Called when a page has come. */
  window.lldscope.fill = () => {
    for (const box of document.querySelectorAll("[data-tokens]:empty")) {
      box.append(...JSON.parse(box.dataset.tokens).map(token));
    }
    for (const box of document.querySelectorAll("[data-map]:empty")) {
      box.append(map(JSON.parse(box.dataset.map)));
    }
    follow();
    const head = document.querySelector("main h1");
    if (document.querySelector(".runs.listed, .run-head")) {
      window.dash_clientside.lldscope.news(window.dash_component_api.getLayout("news").props.data);
    } else if (head) document.title = `${head.firstChild.textContent} – lldscope`;
    /* The token, or the place, that the address names. */
    const marked = document.getElementById(new URL(location.href).searchParams.get("mark"));
    if (marked) reach(marked);
    const place = marked || document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (place) place.scrollIntoView({ block: marked ? "center" : "start" });
  };
})();
