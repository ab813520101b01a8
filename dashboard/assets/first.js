/* The first answer holds the page: its look is shown, and what Dash asks for first is in it. When
   Dash has made the page, that takes its place, and each chart's picture waits over its chart. */
(function () {
  "use strict";
  const first = document.getElementById("first");
  const ready = first ? new Promise((go) => {
    const script = document.createElement("script");
    script.src = first.dataset.plotly;
    script.onload = () => { window.lldscope.charts.inTurn(window.Plotly); go(); };
    script.onerror = go; /* then Dash gets its own, which draws all at once */
    document.head.append(script);
  }) : Promise.resolve();

  const ask = window.fetch;
  window.fetch = function (address, ...rest) {
    const name = String(address.url || address).split("/").pop();
    const given = name.startsWith("_dash-") && document.getElementById(name);
    if (!given) return ask.call(this, address, ...rest);
    const headers = { "Content-Type": "application/json" };
    return ready.then(() => new Response(given.textContent, { headers }));
  };

  if (first) {
    const entry = document.getElementById("react-entry-point");
    const watch = new MutationObserver(() => {
      const page = document.getElementById("page");
      if (!page || !page.children.length) return;
      watch.disconnect();
      const pictures = [...first.querySelectorAll(".picture")];
      page.querySelectorAll(".plot").forEach((plot, i) => plot.append(pictures[i]));
      first.remove();
    });
    watch.observe(entry, { childList: true, subtree: true });
  }
})();
