/* What is chosen stands in the address: a select[data-address] sets that part of it. A chart that was
   added is remembered by the browser, and links to other runs and comparisons ask for it, too; an
   address that is opened in another way shows what it says. */
(function () {
  "use strict";
  const PINS = "lldscope-charts";
  const MOST = 24; /* as many as an address may add */

  function pins() {
    try {
      const stored = JSON.parse(localStorage.getItem(PINS) || "[]");
      return Array.isArray(stored) ? stored.filter((key) => typeof key === "string") : [];
    } catch (e) { return []; } /* private, or not ours */
  }
  function pin(key, on) {
    const others = pins().filter((other) => other !== key);
    const now = on ? [...others, key].slice(-MOST) : others;
    try { localStorage.setItem(PINS, JSON.stringify(now)); } catch (e) { /* private */ }
  }
  window.lldscope = Object.assign(window.lldscope || {}, { pin });

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link || link.origin !== location.origin) return;
    if (link.pathname === location.pathname && link.hash) {
      link.search = location.search; /* to a place on this page: all else stays */
    } else if (link.pathname.startsWith("/run/") || link.pathname === "/compare") {
      const to = new URL(link.href);
      if (to.searchParams.has("chart")) return;
      for (const key of pins()) to.searchParams.append("chart", key);
      link.href = to.href;
    }
  });

  document.addEventListener("change", (event) => {
    const select = event.target.closest("select[data-address]");
    if (!select) return;
    const to = new URL(location.href);
    to.searchParams.delete(select.dataset.address);
    if (select.value) to.searchParams.set(select.dataset.address, select.value);
    location.assign(to);
  });
})();
