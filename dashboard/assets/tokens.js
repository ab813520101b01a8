/* Pages of responses and tokens: numbers on hover and focus, arrow keys, tidy addresses. No data. */
(function () {
  "use strict";
  const OPTIONS = ".tok[role=option]";

  /* Show the numbers of a token; one that was reached stands in the address. */
  function tell(item, keep) {
    const status = document.getElementById("token-status");
    if (status) status.textContent = item.getAttribute("aria-label");
    if (!keep) return;
    const url = new URL(location.href);
    url.searchParams.set("mark", item.id);
    history.replaceState(history.state, "", url);
  }

  /* One token of a column is in the order of Tab; the keys move it. */
  function reach(item) {
    const place = item.closest(".words");
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

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    const named = document.querySelector(`[data-key="${CSS.escape(event.key)}"][href]`);
    if (named) return named.click();
    if (!event.target.matches(OPTIONS)) return;
    const all = [...event.target.closest(".words").querySelectorAll(OPTIONS)], at = all.indexOf(event.target);
    const places = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    const next = all[places[event.key]];
    if (next) reach(next);
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

  /* Open what is folded around a place on the page, and go there. */
  window.lldscope.unfold = (id) => {
    const place = id && document.getElementById(id);
    for (let fold = place; fold; fold = fold.parentElement) if (fold.tagName === "DETAILS") fold.open = true;
    for (const old of document.querySelectorAll(".target")) old.classList.remove("target");
    if (!place) return;
    place.classList.add("target");
    place.scrollIntoView({ block: "start" });
  };

  /* Called when a page has come. */
  window.lldscope.fill = () => {
    for (const box of document.querySelectorAll("[data-tokens]:empty")) {
      box.append(...JSON.parse(box.dataset.tokens).map(token));
    }
    const head = document.querySelector("main h1");
    if (document.querySelector(".runs.listed, .run-head")) {
      document.title = window.lldscope.stored("tab-title");
    } else if (head) document.title = `${head.firstChild.textContent} – lldscope`;
    /* The token, or the place, that the address names. */
    const marked = document.getElementById(new URL(location.href).searchParams.get("mark"));
    if (marked) reach(marked);
    if (marked) marked.scrollIntoView({ block: "center" });
    else window.lldscope.unfold(decodeURIComponent(location.hash.slice(1)));
  };
})();
