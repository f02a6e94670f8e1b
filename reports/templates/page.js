// Draws the charts of the page from their JSON, in the colours of the page's style sheet.
(() => {
  "use strict";
  const root = document.documentElement;
  const narrow_px = 560;
  const paper_px = 960; // what fits on A4 below a heading
  const touched = matchMedia("(pointer: coarse)").matches;
  const config = { displayModeBar: false };

  // A copy of the specification with every string that is a CSS variable replaced by its value.
  const coloured = (value, style) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    }
    return value;
  };

  // Where a legend has no room beside the title of its panel it goes below it; a long one gives way.
  const narrow = (layout) => {
    if (layout.meta?.legend === "wide") layout.showlegend = false;
    // Words beside bars need more of a narrow axis.
    if (layout.xaxis?.range && layout.annotations?.some((note) => note.xshift)) {
      layout.xaxis.range = layout.xaxis.range.map((end) => 1.4 * end);
    }
    for (const [key, legend] of Object.entries(layout).filter(([name]) => /^legend\d*$/.test(name))) {
      const axis = layout[key.replace("legend", "yaxis")];
      if (legend.xanchor !== "right" || !axis?.domain) continue;
      Object.assign(legend, { x: 0, xanchor: "left", y: legend.y - 18 / layout.height });
      axis.domain = [axis.domain[0], axis.domain[1] - 30 / layout.height];
    }
  };

  const drawOne = (place) => {
    const style = getComputedStyle(root);
    const spec = JSON.parse(document.getElementById(`${place.id}-spec`).textContent);
    const { data, layout } = coloured(spec, style);
    layout.width = place.clientWidth;
    if (root.classList.contains("paper")) place.style.height = `min(${place.dataset.height}, ${paper_px}px)`;
    else place.style.height = place.dataset.height;
    layout.height = place.clientHeight;
    if (place.clientWidth < narrow_px) narrow(layout);
    if (touched) layout.dragmode = false; // a finger on a chart scrolls the page
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: style.getPropertyValue("--card").trim(),
      bordercolor: style.getPropertyValue("--muted").trim(),
      font: { ...layout.hoverlabel?.font, color: style.getPropertyValue("--ink").trim() } };
    Plotly.react(place, data, layout, config);
    waiting.delete(place);
  };
  const charts = [...document.querySelectorAll(".chart")];
  for (const place of charts) place.dataset.height = place.style.height;
  const waiting = new Set(charts);
  const draw = () => charts.forEach(drawOne);

  // Charts in view come first, so that a long page answers at once; the others follow one by one.
  const inView = (place) => {
    const { top, bottom } = place.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  };
  const drawRest = () => {
    const next = [...waiting].find(inView) ?? [...waiting][0];
    if (!next) { performance.mark("all-charts-drawn"); return; }
    drawOne(next);
    setTimeout(drawRest);
  };

  const copy = async (button) => {
    const code = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // Without the right to the clipboard the text is selected for the reader to copy.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };

  for (const button of document.querySelectorAll(".copyable button")) {
    button.addEventListener("click", () => copy(button));
  }
  // Stretches of time by button, for those who do not drag.
  for (const button of document.querySelectorAll(".views button")) {
    button.addEventListener("click", () => {
      const place = document.getElementById(button.dataset.chart);
      if (waiting.has(place)) drawOne(place);
      const { start, end } = button.dataset;
      Plotly.relayout(place, start === undefined ? { "xaxis.autorange": true }
        : { "xaxis.range": [Number(start), Number(end)] });
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", other === button);
    });
  }
  let pending = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(draw);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // Paper is white, as wide as A4, and cannot be opened up.
  let opened = [];
  addEventListener("beforeprint", () => {
    root.classList.add("paper");
    opened = [...document.querySelectorAll("tr.named details:not([open])")];
    for (const details of opened) details.open = true;
    draw();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("paper");
    for (const details of opened) details.open = false;
    draw();
  });
  charts.filter(inView).forEach(drawOne);
  performance.mark("ready");
  setTimeout(drawRest);
})();
