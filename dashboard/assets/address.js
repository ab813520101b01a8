/* The view of a page: the query of its address as {key: [values]}, kept in the store "view" (of the
   list of runs: "list-view"), and the buttons that change it. Dash loads scripts by name: this one first. */
(function () {
  "use strict";
  const set = (id, data) => window.dash_clientside.set_props(id, { data });
  /* What a store holds; nothing if the page has no such store. */
  function stored(id) {
    try {
      return window.dash_component_api.getLayout(id).props.data;
    } catch (e) {
      return undefined;
    }
  }
  const place = () => (document.querySelector(".listed") ? "list-view" : "view");
  const view = () => stored(place()) || {};

  /* Change parts of the view: in its store, in the address, and on the buttons. */
  function change(changes) {
    const next = { ...view(), ...changes };
    for (const key of Object.keys(next)) {
      next[key] = next[key].filter((value) => value !== "");
      if (!next[key].length) delete next[key];
    }
    set(place(), next);
    const url = new URL(location.href);
    for (const key of Object.keys({ ...view(), ...changes })) {
      url.searchParams.delete(key);
      for (const value of next[key] || []) url.searchParams.append(key, value);
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url);
    press(next);
  }

  const parse = (setting) => /^([\w-]+)([=~+])([^]*)$/.exec(setting).slice(1);
  /* The runs that are hidden are kept, not those that are shown. */
  function press(now) {
    for (const button of document.querySelectorAll("[data-set][aria-pressed]")) {
      const [key, kind, value] = parse(button.dataset.set), values = now[key] || [];
      const on = kind === "=" && !value ? !values.length : values.includes(value);
      button.setAttribute("aria-pressed", String(key === "hide" ? !on : on));
    }
  }

  function pressed(button) {
    const [key, kind, value] = parse(button.dataset.set), values = view()[key] || [];
    if (key === "x") return change({ x: [value], zoom: [] });
    if (kind === "=") return change({ [key]: [value], ...(key === "sort" ? { page: [] } : {}) });
    const has = values.includes(value);
    change({ [key]: has ? values.filter((v) => v !== value) : [...values, value] });
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-set]");
    if (button) pressed(button);
  });

  (window.dash_clientside = window.dash_clientside || {}).lldscope = {};
  window.lldscope = { view, change, press, set, stored };
})();
