/* How charts are drawn, and the x range and the pointer that they share.

   The range belongs to the browser. It is kept in the page's store "zoom", as {x, range}: the axis
   on which it was chosen and two values in steps, tokens or seconds; null shows everything. Every
   chart that is drawn gets the range of that moment, whatever the server was told when it answered.
   The server only reads the store, to send finer data.

   `layout.meta` of a figure says what its x axis counts (x), how many steps, tokens or seconds one
   unit of the axis is (unit), and the range of the whole run in that unit (whole). */
(function () {
  "use strict";
  const all = () =>
    [...document.querySelectorAll(".graph .js-plotly-plot")].filter((chart) => chart._fullLayout);

  function chosen() {
    const store = window.dash_component_api.getLayout("zoom");
    return store && store.props.data;
  }

  /* The shared range, in the unit of a figure's axis. */
  function rangeOf({ meta }) {
    const zoom = chosen();
    return zoom && zoom.x === meta.x ? zoom.range.map((v) => v / meta.unit) : meta.whole;
  }

  /* Choose the range of the axis of this figure; null: everything. */
  function choose({ meta }, range) {
    const zoom = range && { x: meta.x, range: range.map((v) => v * meta.unit) };
    window.dash_clientside.set_props("zoom", { data: zoom });
  }
  /* All charts at once: nothing else is drawn in between. */
  function follow() {
    for (const chart of all()) {
      const to = rangeOf(chart.layout), now = chart.layout.xaxis.range;
      if (to[0] !== now[0] || to[1] !== now[1]) window.Plotly.relayout(chart, { "xaxis.range": to });
    }
  }
  let frame = 0; /* keys that are pressed faster than charts are drawn */
  function followSoon() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(follow);
  }

  /* The pointer of one chart in all of them. */
  function point(source, { points: [at] }) {
    for (const chart of all()) {
      if (chart !== source) window.Plotly.Fx.hover(chart, { xval: at.x }, ["xy"], true);
    }
  }
  function unpoint(source, { event }) {
    if (!event) return; /* not the reader's, but from here */
    for (const chart of all()) if (chart !== source) window.Plotly.Fx.unhover(chart);
  }

  /* The figure that the server gave, before the reader's wishes; and the chart's id. */
  const given = new WeakMap();
  const idOf = (chart) => {
    const tools = chart.closest(".chart") && chart.closest(".chart").querySelector(".tools");
    return tools ? tools.dataset.chart : "";
  };
  function redraw(chart) {
    const figure = given.get(chart);
    if (figure) window.Plotly.react(chart, figure);
  }

  /* In the place of Dash's listeners: it would draw a chart again whenever its range has changed. */
  function listen(chart) {
    for (const name of ["relayout", "hover", "unhover"]) chart.removeAllListeners(`plotly_${name}`);
    chart.on("plotly_relayout", (change) => {
      const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]]; /* of a drag */
      if (range[0] === undefined) return;
      choose(chart.layout, range);
      follow();
    });
    chart.on("plotly_doubleclick", showAll);
    chart.on("plotly_hover", (hover) => point(chart, hover));
    chart.on("plotly_unhover", (hover) => unpoint(chart, hover));
  }

  /* Charts are drawn one at a time, those in view first, so that the page answers in between. */
  function inTurn(Plotly) {
    const { react } = Plotly, { resize } = Plotly.Plots;
    const waiting = [];
    const inView = ({ chart }) => {
      const box = chart.getBoundingClientRect();
      return box.bottom > 0 && box.top < window.innerHeight;
    };
    function draw({ chart, figure, done }) {
      const first = !chart._fullLayout;
      const xaxis = { ...figure.layout.xaxis, range: rangeOf(figure.layout), autorange: false };
      const yaxis = window.lldscope.yaxis(idOf(chart), figure);
      const layout = { ...figure.layout, xaxis, yaxis };
      given.set(chart, figure);
      done(react(chart, { ...figure, layout }));
      if (first) {
        chart.on("plotly_afterplot", () => unclutter(chart));
        unclutter(chart);
        listen(chart);
        setTimeout(() => listen(chart)); /* Dash has added its listeners */
      }
    }
    function next() {
      const [job] = waiting.splice(Math.max(0, waiting.findIndex(inView)), 1);
      if (waiting.length) setTimeout(next, 0);
      draw(job);
    }
    Plotly.react = (chart, figure) => new Promise((done) => {
      waiting.push({ chart, figure, done });
      if (waiting.length === 1) setTimeout(next, 0);
    });
    /* Dash asks for this once a chart is drawn, which draws it again. */
    Plotly.Plots.resize = (chart) => {
      const { width, height } = chart._fullLayout || {};
      const same = Math.abs(chart.clientWidth - width) < 1 && Math.abs(chart.clientHeight - height) < 1;
      return same ? Promise.resolve(chart) : resize(chart);
    };
  }

  /* Names of alarms stand in the order of their gravity: one that would overlap a graver one, or
     leave the chart, is not shown. */
  function unclutter(chart) {
    const edge = chart.getBoundingClientRect(), kept = [];
    for (const name of chart.querySelectorAll(".annotation")) {
      const box = name.getBoundingClientRect();
      const over = (b) => box.left < b.right && b.left < box.right
        && box.top < b.bottom - 4 && b.top < box.bottom - 4;
      const shows = box.left >= edge.left && box.right <= edge.right && !kept.some(over);
      name.style.visibility = shows ? "" : "hidden";
      if (shows) kept.push(box);
    }
    /* So does the name of a phase that is wider than its part of the strip. All are measured before
       one is changed: after a change the browser would have to find every place anew. */
    const phases = [...chart.querySelectorAll(".shape-label")];
    const hides = phases.map((text) => {
      const part = text.parentElement.querySelector("path")?.getBoundingClientRect().width || 0;
      return part > 4 && text.getBoundingClientRect().width > part; /* 4: lines of events */
    });
    phases.forEach((text, i) => { text.style.visibility = hides[i] ? "hidden" : ""; });
  }

  /* Move the shared range by a share of its width, and make it wider. */
  function move(shift, grow) {
    const [chart] = all();
    if (!chart) return;
    const [a, b] = rangeOf(chart.layout), width = b - a;
    const middle = (a + b) / 2 + shift * width, half = (width * grow) / 2;
    choose(chart.layout, [middle - half, middle + half]);
    followSoon();
  }
  function showAll() {
    const [chart] = all();
    if (!chart) return;
    choose(chart.layout, null);
    followSoon();
  }

  if (window.Plotly) inTurn(window.Plotly); /* loaded before, on pages with charts */
  window.lldscope = Object.assign(window.lldscope || {}, { charts: { all, move, showAll, redraw } });
})();
