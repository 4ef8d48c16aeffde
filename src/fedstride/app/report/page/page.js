"use strict";
// Draws the charts, and redraws them when the reader changes an axis, the series shown, the window, or the colour scheme.
const page = JSON.parse(document.getElementById("data").textContent);
const dark = new Map(Object.entries(page.dark));
const night = matchMedia("(prefers-color-scheme: dark)");
const frames = [...document.querySelectorAll("[data-chart]")];
const buttons = [...document.querySelectorAll("[data-group]")];
const hidden = new Map(frames.map((frame) => [frame, new Set()])); // names of series
const scales = new Map(); // chosen vertical scales by frame
let printing = false;

function tone(colour) {
  return night.matches && !printing ? dark.get(colour) ?? colour : colour;
}

function figureOf(frame) {
  const axis = document.querySelector("[name=axis]:checked")?.value;
  const left = new Set(buttons.filter((b) => b.ariaPressed === "false").map((b) => b.dataset.group));
  const figure = structuredClone(page.charts[frame.dataset.chart]);
  for (const trace of figure.data) {
    trace.visible = !left.has(trace.legendgroup) && !hidden.get(frame).has(trace.name);
    if (axis === undefined || trace.meta === undefined) continue; // its x is its own
    trace.x = page.x[trace.meta][axis].slice(0, trace.y.length);
    figure.layout.xaxis.title.text = page.axes[axis].title;
    Object.assign(figure.layout.xaxis, page.axes[axis].format, { rangemode: "tozero" });
  }
  if (scales.has(frame)) figure.layout.yaxis.type = scales.get(frame);
  if (printing) Object.assign(figure.layout, page.printed);
  return figure;
}

function draw() {
  for (const line of document.querySelectorAll("line[data-colour]")) line.setAttribute("stroke", tone(line.dataset.colour));
  for (const frame of frames) {
    const { log } = drawChart(frame, figureOf(frame), tone, (name) => {
      if (!hidden.get(frame).delete(name)) hidden.get(frame).add(name);
      draw();
    });
    const button = frame.parentNode.querySelector("[data-do=log]");
    if (button) button.ariaPressed = String(Boolean(log));
  }
}

const actions = {
  log: (frame, button) => { scales.set(frame, button.ariaPressed === "true" ? "linear" : "log"); draw(); },
  csv: (frame) => save(`${frame.dataset.chart}.csv`, `data:text/csv;charset=utf-8,${encodeURIComponent(tableOf(figureOf(frame)))}`),
  png: (frame) => savePicture(frame, frame.dataset.chart, tone(page.paper)),
};

for (const button of document.querySelectorAll("[data-do]"))
  button.addEventListener("click", () => actions[button.dataset.do](button.closest("figure").querySelector("[data-chart]"), button));
for (const button of buttons)
  button.addEventListener("click", () => { button.ariaPressed = String(button.ariaPressed === "false"); draw(); });
document.querySelector(".switch")?.addEventListener("change", draw);
night.addEventListener("change", draw);
let width = innerWidth;
addEventListener("resize", () => { if (width !== innerWidth) draw(); width = innerWidth; });
for (const [event, now] of [["beforeprint", true], ["afterprint", false]]) addEventListener(event, () => { printing = now; draw(); });
draw();
