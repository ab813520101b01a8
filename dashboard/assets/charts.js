/* The x range and the pointer that all charts of a page share.

   The range is kept in the page's store "zoom", as {x, range}: the axis on which it was chosen and
   two values in steps, tokens or seconds; null shows everything. `layout.meta` of a figure says what
   its x axis counts (x), how many steps, tokens or seconds one unit of the axis is (unit), and the
   range of the whole run in that unit (whole). The server reads the store, and sends finer data. */
(function () {
  "use strict";
  const all = () =>
    [...document.querySelectorAll(".graph .js-plotly-plot")].filter((chart) => chart._fullLayout);
  const triggered = (ids) => {
    const [one] = window.dash_clientside.callback_context.triggered || [];
    return one && ids.findIndex((id) => one.prop_id.includes(JSON.stringify(id.index)));
  };

  /* Show this range, in units of the axis, in all charts; null: everything. */
  function show(range) {
    const charts = all();
    if (!charts.length) return;
    const { meta } = charts[0].layout;
    const zoom = range && { x: meta.x, range: range.map((v) => v * meta.unit) };
    window.dash_clientside.set_props("zoom", { data: zoom });
    for (const chart of charts) {
      listen(chart);
      turn(chart, range || chart.layout.meta.whole);
    }
  }

  function turn(chart, to) {
    const now = chart.layout.xaxis.range;
    if (to[0] === now[0] && to[1] === now[1]) return;
    window.Plotly.relayout(chart, { "xaxis.range": [...to], "xaxis.autorange": false });
  }

  /* The range of the store for a figure on this x axis; none where the store is still on another. */
  function wanted({ x, unit, whole }) {
    const { data: zoom } = window.dash_component_api.getLayout("zoom").props;
    return zoom ? zoom.x === x && zoom.range.map((v) => v / unit) : whole;
  }

  /* Move the shared range by a share of its width, and make it wider. */
  function move(shift, grow) {
    const [chart] = all();
    if (!chart) return;
    const [a, b] = wanted(chart.layout.meta) || chart.layout.xaxis.range, width = b - a;
    const middle = (a + b) / 2 + shift * width, half = (width * grow) / 2;
    show([middle - half, middle + half]);
  }

  /* Plotly's own events come at once. Dash would pass them on later, after what came in between. A
     chart that was made anew has no listeners, so this is done again and again. */
  function listen(chart) {
    for (const [event, listener] of [["plotly_relayout", zoomed], ["plotly_afterplot", settle]]) {
      chart.removeListener(event, listener);
      chart.on(event, listener);
    }
  }

  /* The reader has zoomed; what we change ourselves names the range as a whole. */
  function zoomed(change) {
    if ("xaxis.range[0]" in change) show([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    else if (change["xaxis.autorange"]) show(null);
  }

  /* An answer to what was asked before a zoom may be drawn after it: the range that holds now stays. */
  function settle() {
    for (const chart of all()) turn(chart, wanted(chart.layout.meta) || chart.layout.xaxis.range);
  }

  document.addEventListener("mousedown", ({ target }) => {
    const chart = target.closest(".graph .js-plotly-plot");
    if (chart && chart.on) listen(chart);
  }, { capture: true, passive: true });

  Object.assign(window.dash_clientside = window.dash_clientside || {}, { lldscope: {
    /* The pointer of one chart in all of them. */
    point(hovers, ids) {
      const at = triggered(ids), hover = hovers[at];
      all().forEach((chart, i) => {
        if (i === at) return;
        if (hover) window.Plotly.Fx.hover(chart, { xval: hover.points[0].x }, ["xy"], true);
        else window.Plotly.Fx.unhover(chart);
      });
    },
  } });

  /* A finger scrolls the page, and a tap points; Plotly would take both for a drag. */
  document.addEventListener("touchstart", (event) => {
    if (event.target.closest(".draglayer")) event.stopPropagation();
  }, { capture: true, passive: true });

  window.lldscope = { charts: { all, move, show } };
})();
