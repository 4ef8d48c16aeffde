"use strict";
// What a reader can do with a chart: point at it, and save it as a table or a picture.
function hover(frame, svg, figure, box, spots, tone) {
  const tip = document.createElement("div"), together = figure.layout.hovermode === "x unified";
  const guide = node(svg, "path", { stroke: tone(page.muted), "stroke-dasharray": "2 3", "pointer-events": "none" });
  tip.className = "tip";
  tip.hidden = true;
  frame.append(tip);
  svg.addEventListener("pointerleave", () => { tip.hidden = true; guide.setAttribute("d", ""); });
  svg.addEventListener("pointermove", (event) => {
    const corner = svg.getBoundingClientRect(), px = event.clientX - corner.left, py = event.clientY - corner.top;
    const found = together ? columnAt(spots, px) : spotAt(spots, px, py);
    tip.hidden = !found.length || px < box.left - 12;
    guide.setAttribute("d", together && !tip.hidden ? `M${found[0][0]} ${box.top}V${box.bottom}` : "");
    if (tip.hidden) return;
    const first = found[0], title = figure.layout.xaxis.title?.text ?? "";
    const head = together ? [line(`${title}: ${number(first[2].x[first[3]], figure.layout.xaxis.tickformat)}${figure.layout.xaxis.ticksuffix ?? ""}`)] : [];
    const format = figure.layout.yaxis.tickformat === ".0%" ? ".1%" : ".4g";
    tip.replaceChildren(...head, ...found.map((spot) => (together ? line(`${spot[2].name}: ${number(spot[2].y[spot[3]], format)}`, tone(spot[2].line.color)) : line(worded(spot, figure)))));
    const half = tip.offsetWidth / 2;
    tip.style.left = `${Math.min(Math.max(px, half), frame.clientWidth - half)}px`;
    tip.style.top = `${py > tip.offsetHeight + 16 ? py - tip.offsetHeight - 12 : py + 16}px`;
  });
}

function line(text, colour) {
  const made = document.createElement("div");
  if (colour) {
    const mark = document.createElement("i");
    mark.style.background = colour;
    made.append(mark);
  }
  made.append(text);
  return made;
}

function columnAt(spots, px) {
  const nearest = spots.reduce((best, spot) => (best && Math.abs(best[0] - px) <= Math.abs(spot[0] - px) ? best : spot), null);
  return nearest ? spots.filter((spot) => Math.abs(spot[0] - nearest[0]) < 0.5) : [];
}

function spotAt(spots, px, py) {
  const far = ([x, y, , , wide = 0, tall = 0]) => Math.hypot(Math.max(x - px, 0, px - x - wide), Math.max(y - py, 0, py - y - tall));
  const nearest = spots.reduce((best, spot) => (best && far(best) <= far(spot) ? best : spot), null);
  return nearest && far(nearest) < 24 ? [nearest] : [];
}

function worded([, , trace, i, , , j], figure) {
  const named = (axis, v) => axis.ticktext?.[axis.tickvals.indexOf(v)] ?? v;
  const facts = j === undefined
    ? { x: trace.x[i], y: trace.y[i], customdata: trace.customdata?.[i] }
    : { x: named(figure.layout.xaxis, trace.x[i]), y: named(figure.layout.yaxis, trace.y[j]), z: trace.z[j][i], text: trace.text?.[j][i] };
  const usual = `${trace.name ?? ""}: %{x}, %{y}`;
  return (trace.hovertemplate ?? usual).replace(/<extra>.*/, "").replace(/%\{(\w+)(?:\[(\d)\])?(?::([^}]*))?\}/g, (_, name, k, format) => {
    const value = k === undefined ? facts[name] : facts[name][k];
    return number(value, format);
  });
}

function tableOf(figure) { // one row per point
  const quoted = (v) => (/[",\n]/.test(v ?? "") ? `"${String(v).replaceAll('"', '""')}"` : v ?? "");
  const rows = [["series", figure.layout.xaxis.title?.text || "x", figure.layout.yaxis.title?.text || "y", "value"]];
  for (const trace of figure.data)
    if (trace.z) trace.z.forEach((row, j) => row.forEach((v, i) => rows.push([trace.name, trace.x[i], figure.layout.yaxis.ticktext?.[j] ?? trace.y[j], v])));
    else if (trace.type !== "contour") trace.x.forEach((v, i) => rows.push([trace.name, v, trace.y[i]]));
  const whole = rows.some((row, i) => i > 0 && row.length > 3);
  return rows.map((row) => row.slice(0, whole ? 4 : 3).map(quoted).join(",")).join("\n") + "\n";
}

function save(name, address) {
  const link = document.createElement("a");
  [link.download, link.href] = [name, address];
  link.click();
}

function savePicture(frame, name, paper) {
  const svg = frame.querySelector("svg"), picture = new Image(), canvas = document.createElement("canvas"), scale = 2;
  [canvas.width, canvas.height] = [scale * svg.clientWidth, scale * svg.clientHeight];
  picture.onload = () => {
    const drawing = canvas.getContext("2d");
    drawing.fillStyle = paper;
    drawing.fillRect(0, 0, canvas.width, canvas.height);
    drawing.drawImage(picture, 0, 0, canvas.width, canvas.height);
    save(`${name}.png`, canvas.toDataURL());
  };
  picture.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
}
