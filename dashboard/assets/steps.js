/* The step bar: one slider. A step that is chosen is shown in all charts, and its batch beside them. */
(function () {
  "use strict";
  const { view, change, set } = window.lldscope;
  const { charts } = window.lldscope;
  const WAIT = 150; /* ms after the last move until the batch is asked for */
  let timer = null, cells = null;

  /* What the bar shows; null without one. */
  function read() {
    const bar = document.getElementById("steps");
    cells = bar && JSON.parse(bar.dataset.cells);
    return cells;
  }

  const chosen = () => {
    const { step } = view();
    return step && step[0] ? Number(step[0]) : null;
  };

  /* The cell of a step: the last that does not begin after it. */
  const cellOf = (step) => Math.max(0, cells.step.findLastIndex((first) => first <= step));

  /* Mark the chosen step on the bar, say it, and point at it in all charts. */
  function mark() {
    const bar = document.getElementById("steps"), step = chosen();
    const sign = document.getElementById("step-mark"), word = document.getElementById("step-word");
    if (!bar || !read()) return;
    sign.hidden = step === null;
    if (step === null) {
      word.textContent = "";
      bar.setAttribute("aria-valuetext", "no step selected");
      charts.point(null);
      return;
    }
    const at = cellOf(step), text = `step ${step}, ${cells.word[at]}`;
    sign.style.left = `${(100 * (at + 0.5)) / cells.step.length}%`;
    if (word.textContent !== text) word.textContent = text;
    bar.setAttribute("aria-valuenow", String(step));
    bar.setAttribute("aria-valuetext", text);
    const [chart] = charts.all();
    if (!chart) return;
    const { x, unit } = chart.layout.meta, raw = x === "step" ? step : (cells[x] || [])[at];
    if (raw !== null && raw !== undefined) charts.point(raw / unit);
  }

  function choose(step) {
    change({ step: step === null ? [] : [String(step)] });
    mark();
  }

  /* Ask for the batch of the step that the view names, once it stays. */
  function ask() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if ((window.lldscope.stored("step") ?? null) !== chosen()) set("step", chosen());
    }, WAIT);
  }

  function move(by) {
    if (!read()) return;
    const step = chosen(), n = cells.step.length;
    const at = step === null ? n - 1 : cellOf(step) + by;
    choose(cells.step[Math.max(0, Math.min(n - 1, at))]);
  }

  document.addEventListener("click", (event) => {
    const bar = event.target.closest("#steps");
    if (!bar || !read()) return;
    const box = bar.getBoundingClientRect();
    const at = Math.floor(((event.clientX - box.left) / box.width) * cells.step.length);
    choose(cells.step[Math.max(0, Math.min(cells.step.length - 1, at))]);
    bar.focus({ preventScroll: true });
  });

  Object.assign(window.dash_clientside.lldscope, {
    /* A click on a chart chooses the step that is nearest. */
    choose(clicks) {
      const [one] = window.dash_clientside.callback_context.triggered || [];
      if (!one || !one.value || !read()) return;
      const [chart] = charts.all(), { x, unit } = chart.layout.meta;
      const at = one.value.points[0].x * unit, values = cells[x] || [];
      let best = 0;
      values.forEach((v, i) => {
        if (v !== null && Math.abs(v - at) < Math.abs(values[best] - at)) best = i;
      });
      if (values.length) choose(x === "step" ? Math.round(at) : cells.step[best]);
    },
    /* The bar is new, or the batch beside the charts, which are as wide as there is room then. */
    stepped: () => { for (const wait of [50, 400]) setTimeout(mark, wait); },
  });
  Object.assign(window.lldscope, { steps: { ask, choose, chosen, mark, move } });
})();
