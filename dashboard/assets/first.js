/* The first answer holds the page: its look is shown, and what Dash asks for first is in it. When
   Dash has made the page, that takes its place, and each chart's picture waits over its chart.
   Charts are drawn one at a time, those in view first, so that the page answers in between. */
(function () {
  "use strict";
  const first = document.getElementById("first");
  const ready = first ? new Promise((go) => {
    const script = document.createElement("script");
    script.src = first.dataset.plotly;
    script.onload = () => { inTurn(window.Plotly); go(); };
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

  function inTurn(Plotly) {
    const { react } = Plotly, { resize } = Plotly.Plots;
    const waiting = [];
    const inView = ({ chart }) => {
      const box = chart.getBoundingClientRect();
      return box.bottom > 0 && box.top < window.innerHeight;
    };
    function next() {
      const [job] = waiting.splice(Math.max(0, waiting.findIndex(inView)), 1);
      if (waiting.length) setTimeout(next, 0);
      job.done(Promise.resolve(react(job.chart, ...job.rest)).finally(() => {
        const plot = job.chart.closest(".plot");
        const picture = plot && plot.querySelector(".picture");
        if (picture) picture.remove();
      }));
    }
    Plotly.react = (chart, ...rest) => new Promise((done) => {
      waiting.push({ chart, rest, done });
      if (waiting.length === 1) setTimeout(next, 0);
    });
    /* Dash asks for this once a chart is drawn, which draws it again. */
    Plotly.Plots.resize = (chart) => {
      const { width, height } = chart._fullLayout || {};
      const same = Math.abs(chart.clientWidth - width) < 1 && Math.abs(chart.clientHeight - height) < 1;
      return same ? Promise.resolve(chart) : resize(chart);
    };
  }
})();
