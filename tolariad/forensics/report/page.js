"use strict";
// Draws the charts of the page from the numbers in it. Without scripts the still pictures stay.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const charts = [];
  let axis = "line";

  // Points of several curves over one x: uPlot wants one rising list of places.
  function joined(curves) {
    const places = new Set();
    for (const one of curves) for (const x of one.x) places.add(x);
    const x = [...places].sort((a, b) => a - b);
    const at = new Map(x.map((value, index) => [value, index]));
    const columns = [x];
    for (const one of curves) {
      for (const key of one.pair ? ["low", "high"] : ["low"]) {
        const column = new Array(x.length).fill(undefined);
        const values = one[key] || one.low;
        one.x.forEach((place, index) => { column[at.get(place)] = values[index]; });
        columns.push(column);
      }
    }
    return columns;
  }

  // The exact values around an event, if the shown range lies within them.
  function within(curve, first, last) {
    const found = (curve.exact || []).find((one) => one.x[0] <= first && last <= one.x[one.x.length - 1]);
    return found ? { x: found.x, low: found.y, pair: curve.pair } : curve;
  }

  function marksOf() {
    return data.runs.flatMap((run, index) => run.marks.map((mark) => ({ ...mark, run: index, x: axis === "line" ? mark.step : mark.row })));
  }

  function spansOf() {
    const pick = (span) => axis === "line" ? [span.first, span.last] : [span.first_row, span.last_row];
    return data.runs.flatMap((run) => run.spans.map((span) => ({ ...span, x: pick(span) })));
  }

  function draw(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.globalAlpha = 0.12;
    ctx.fillStyle = colour("--a");
    for (const span of spansOf()) {
      const first = plot.valToPos(span.x[0], "x", true);
      const last = span.x[1] === null ? bbox.left + bbox.width : plot.valToPos(span.x[1], "x", true);
      ctx.fillRect(first, bbox.top, Math.max(1, last - first), bbox.height);
    }
    ctx.globalAlpha = 0.8;
    ctx.strokeStyle = colour("--dim");
    ctx.setLineDash([4, 4]);
    for (const mark of marksOf()) {
      const x = Math.round(plot.valToPos(mark.x, "x", true)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function nearest(x, width) {
    const close = marksOf().filter((mark) => Math.abs(mark.x - x) <= width);
    return close.slice(0, 3).map((mark) => `${mark.kind}: ${mark.text}`).join(" | ");
  }

  function make(host) {
    const name = host.dataset.name;
    const told = host.querySelector(".told");
    const drawn = data.runs.filter((run) => run.curves.line[name]);
    // A run with many steps has two lines: the least and the greatest value of each bucket of steps.
    const paired = (run) => Object.values(run.curves).some((by) => by[name] && by[name].high);
    const curveOf = (run) => (run.curves[axis] || run.curves.line)[name] || run.curves.line[name];
    const of = () => drawn.map((run) => ({ ...curveOf(run), pair: paired(run) }));
    const series = [{ label: axis === "line" ? "step" : "made as" }];
    drawn.forEach((run) => {
      const stroke = () => colour(run === data.runs[0] ? "--a" : "--b");
      for (const label of paired(run) ? [`${run.name} least`, `${run.name} greatest`] : [run.name]) series.push({ label, stroke, width: 1 });
    });
    const grid = { stroke: () => colour("--line"), width: 1 };
    const ink = { stroke: () => colour("--dim"), grid, ticks: grid };
    const plot = new uPlot({
      width: host.clientWidth || 1000, height: 260, series, axes: [ink, ink], scales: { x: { time: false } },
      hooks: {
        draw: [draw],
        setScale: [(one, key) => {
          if (key !== "x" || one.exchanging) return;
          const { min, max } = one.scales.x;
          one.exchanging = true;
          one.setData(joined(of().map((curve) => within(curve, min, max))), false);
          one.exchanging = false;
          one.redraw();
        }],
        setCursor: [(one) => {
          const { left } = one.cursor;
          if (left < 0) return;
          const { min, max } = one.scales.x;
          told.textContent = nearest(one.posToVal(left, "x"), (max - min) / 100);
        }],
      },
    }, joined(of()), host);
    const whole = () => { const x = joined(of())[0]; return [x[0], x[x.length - 1]]; };
    host.addEventListener("keydown", (event) => {
      const { min, max } = plot.scales.x;
      const width = max - min;
      const to = { "+": [min + width / 4, max - width / 4], "=": [min + width / 4, max - width / 4], "-": [min - width / 2, max + width / 2],
        ArrowLeft: [min - width / 4, max - width / 4], ArrowRight: [min + width / 4, max + width / 4], "0": whole() }[event.key];
      if (!to) return;
      event.preventDefault();
      const [first, last] = whole();
      plot.setScale("x", { min: Math.max(first, to[0]), max: Math.min(last, to[1]) });
    });
    charts.push({ plot, again: () => { plot.setData(joined(of())); const [min, max] = whole(); plot.setScale("x", { min, max }); } });
  }

  root.classList.add("js");
  document.querySelectorAll(".chart").forEach(make);
  document.querySelectorAll("button[data-axis]").forEach((button) => button.addEventListener("click", () => {
    axis = button.dataset.axis;
    document.querySelectorAll("button[data-axis]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    charts.forEach((one) => one.again());
  }));
  addEventListener("resize", () => charts.forEach(({ plot }) => plot.setSize({ width: plot.root.parentElement.clientWidth, height: 260 })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(({ plot }) => plot.redraw(false)));
  document.body.dataset.drawn = String(charts.length);
})();
