"use strict";
// Draws the charts, and redraws them when the reader changes the axis, the algorithms shown, or the colour scheme.
const page = JSON.parse(document.getElementById("data").textContent);
const dark = new Map(Object.entries(page.dark));
const night = matchMedia("(prefers-color-scheme: dark)");
const frames = [...document.querySelectorAll("[data-chart]")];
const buttons = [...document.querySelectorAll("[data-group]")];
let printing = false;

function tone(colour) {
  return night.matches && !printing ? dark.get(colour) ?? colour : colour;
}

function draw() {
  const axis = document.querySelector("[name=axis]:checked")?.value;
  const hidden = new Set(buttons.filter((b) => b.ariaPressed === "false").map((b) => b.dataset.group));
  for (const line of document.querySelectorAll("line[data-colour]")) line.setAttribute("stroke", tone(line.dataset.colour));
  for (const frame of frames) {
    const figure = JSON.parse(JSON.stringify(page.charts[frame.dataset.chart]), (_, v) => (typeof v === "string" ? tone(v) : v));
    for (const trace of figure.data) {
      if (axis === undefined || trace.meta === undefined) continue; // its x is its own
      trace.x = page.x[trace.meta][axis];
      trace.visible = !hidden.has(trace.legendgroup);
      figure.layout.xaxis.title.text = page.axes[axis].title;
      Object.assign(figure.layout.xaxis, page.axes[axis].format, { rangemode: "tozero" });
    }
    if (printing) Object.assign(figure.layout, page.printed);
    Plotly.react(frame, figure.data, figure.layout, { displayModeBar: false, responsive: true });
  }
}

function print(now) {
  printing = now;
  draw();
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    button.ariaPressed = String(button.ariaPressed === "false");
    draw();
  });
}
document.querySelector(".switch")?.addEventListener("change", draw);
night.addEventListener("change", draw);
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
draw();
