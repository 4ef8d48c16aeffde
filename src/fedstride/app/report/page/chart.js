"use strict";
// Draws a figure as SVG: lines, bands, markers, bars, heat maps and contours, in the part of plotly's format that the pages use.
const SVG = "http://www.w3.org/2000/svg";
const FONT = "12px system-ui, sans-serif";
const DASHES = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" };
const pen = document.createElement("canvas").getContext("2d");

function node(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function widthOf(text) {
  pen.font = FONT;
  return pen.measureText(text).width;
}

function number(value, format = "") {
  if (typeof value !== "number") return String(value ?? "–");
  const fixed = /^\.(\d)(f|g|%)$/.exec(format);
  if (fixed?.[2] === "%") return (100 * value).toFixed(fixed[1]) + " %";
  if (fixed?.[2] === "f") return value.toFixed(fixed[1]);
  if (fixed) return String(Number(value.toPrecision(fixed[1])));
  if (format === "~s" && Math.abs(value) >= 1000) {
    const power = Math.min(4, Math.floor(Math.log10(Math.abs(value)) / 3));
    return Number((value / 1000 ** power).toPrecision(4)) + " " + " kMGT"[power];
  }
  const small = value !== 0 && Math.abs(value) < 1e-4;
  if (small || Math.abs(value) >= 1e7) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  return value.toLocaleString("en", { maximumSignificantDigits: 5 });
}

// An axis: where a value is, in pixels, and its ticks.
function axisOf(spec, values, from, to, ticks, padded) {
  if (spec.type === "category" || values.some((v) => typeof v === "string")) return places(spec, values, from, to);
  const log = spec.type === "log";
  const known = values.filter((v) => Number.isFinite(v) && (!log || v > 0)).map((v) => (log ? Math.log10(v) : v));
  if (spec.rangemode === "tozero" && !log) known.push(0);
  let [low, high] = spec.range ?? (known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : [0, 1]);
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  if (!spec.range) {
    const margin = padded * (high - low);
    if (!(spec.rangemode === "tozero" && low === 0)) low -= margin;
    high += margin;
  }
  if (spec.autorange === "reversed") [low, high] = [high, low];
  const at = (v) => from + ((to - from) * ((log ? Math.log10(v) : v) - low)) / (high - low);
  if (spec.tickvals) return { at, log, ticks: spec.tickvals.map((v, i) => [v, spec.showticklabels === false ? "" : spec.ticktext[i]]) };
  const marks = (log ? decades : steps)(Math.min(low, high), Math.max(low, high), ticks);
  const gap = marks.length > 1 ? Math.abs(marks[1] - marks[0]) : 1;
  const share = spec.tickformat === ".0%" && `.${Math.max(0, Math.ceil(-Math.log10(100 * gap) - 1e-9))}%`;
  return { at, log, ticks: marks.map((v) => [v, number(v, share || spec.tickformat) + (spec.ticksuffix ?? "")]) };
}

function places(spec, values, from, to) {
  const names = [...new Set(values)];
  const size = (to - from) / names.length;
  const turned = spec.autorange === "reversed" ? names.length - 1 : 0;
  const at = (v) => from + size * (Math.abs(names.indexOf(v) - turned) + 0.5);
  return { at, size: Math.abs(size), ticks: names.map((name) => [name, name]) };
}

function steps(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((k) => k * power >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function decades(low, high, count) {
  const within = high - low > 2 ? [1] : high - low > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
  const every = Math.max(1, Math.ceil((high - low) / count)), found = [];
  for (let k = Math.floor(low); k <= high; k++)
    for (const m of within) {
      const exponent = k + Math.log10(m);
      if (exponent >= low - 1e-9 && exponent <= high + 1e-9 && (m > 1 || k % every === 0)) found.push(Number((m * 10 ** k).toPrecision(3)));
    }
  return found;
}

// What can be pointed at: [x, y, trace, index, width, height] in pixels; for bars and cells with their size.
function drawChart(frame, figure, tone, toggle) {
  const { layout } = figure, width = layout.width ?? frame.clientWidth, traces = figure.data.filter((t) => t.visible !== false);
  const second = layout.yaxis2, height = layout.height;
  const svg = node({ append: (made) => frame.replaceChildren(made) }, "svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, style: `font: ${FONT}` });
  const top = layout.showlegend ? legend(svg, figure.data, width, tone, toggle) : 8;
  const [xs, ys] = extents(traces.filter((t) => t.yaxis !== "y2"), layout);
  const bottom = height - (layout.xaxis.title?.text ? 44 : 26);
  const domain = layout.yaxis.domain ?? [0, 1];
  const yFrom = bottom, yTo = top + (bottom - top) * (1 - domain[1]);
  const marked = traces.some((t) => t.type !== "scatter" || t.mode !== "lines");
  const y = axisOf(layout.yaxis, ys, yFrom, yTo, Math.max(3, Math.min(layout.yaxis.nticks ?? 6, (yFrom - yTo) / 40)), traces.some((t) => t.type === "heatmap" || t.type === "contour") ? 0 : 0.06);
  const titled = layout.yaxis.title?.text ? 20 : 0;
  const left = Math.min(0.4 * width, 10 + titled + y.ticks.reduce((most, [, label]) => Math.max(most, widthOf(label)), 0));
  const scaled = traces.find((t) => t.type === "heatmap"), right = width - (scaled ? 52 : 14);
  const grid = traces.some((t) => t.type === "heatmap" || t.type === "contour");
  const x = axisOf(layout.xaxis, xs, left, right, Math.max(2, Math.min(layout.xaxis.nticks ?? 7, (right - left) / 80)), grid || !marked ? 0 : 0.03);
  const box = { left, right, top: yTo, bottom, x, y };
  if (scaled) spread(scaled, box);
  frameOf(svg, layout, box, tone);
  const clip = `clip-${frame.id}`;
  node(node(svg, "clipPath", { id: clip }), "rect", { x: left - 8, y: top - 8, width: right - left + 16, height: bottom - top + 16 });
  const place = node(svg, "g", { "clip-path": `url(#${clip})` });
  for (const shape of layout.shapes ?? []) shapeOf(place, shape, box, tone);
  const spots = [];
  const bars = traces.filter((t) => t.type === "bar" && t.yaxis !== "y2");
  traces.forEach((trace, i) => {
    if (trace.type === "heatmap") cells(place, trace, box, tone, spots);
    else if (trace.type === "contour") contour(place, trace, box, tone);
    else if (trace.type === "bar" && second) upper(svg, trace, box, top, second, tone, spots);
    else if (trace.type === "bar") barsOf(place, trace, bars.indexOf(trace), bars.length, layout, box, tone, spots);
    else curve(place, trace, traces[i - 1], box, tone, spots);
  });
  hover(frame, svg, figure, box, spots, tone);
  return { log: y.log };
}

function extents(traces, layout) {
  const xs = [], ys = [];
  for (const t of traces) {
    const across = t.orientation === "h", base = t.base ?? 0;
    const lengths = t.type === "bar" ? [base, ...(across ? t.x : t.y).map((v) => (v === null ? base : base + v))] : [];
    if (t.error_y) t.y.forEach((v, i) => lengths.push(v + t.error_y.array[i], v - t.error_y.array[i]));
    xs.push(...(t.type === "bar" && across ? lengths : t.x));
    ys.push(...(t.type === "bar" && !across ? lengths : t.y));
  }
  for (const shape of layout.shapes ?? []) if (shape.type === "line") ys.push(shape.y0);
  return [xs, ys];
}

function spread(trace, box) { // cells are as wide as the places between them
  for (const [name, axis, from, to] of [["x", box.x, box.left, box.right], ["y", box.y, box.bottom, box.top]]) {
    if (axis.size) continue;
    const n = trace[name].length, first = trace[name][0];
    axis.size = Math.abs(to - from) / n;
    axis.at = (v) => from + ((to - from) * (v - first + 0.5)) / n;
    axis.ticks = axis.ticks.filter(([v]) => trace[name].includes(v));
  }
}

function frameOf(svg, layout, { left, right, top, bottom, x, y }, tone) {
  const muted = tone(layout.font.color), rule = tone(layout.yaxis.gridcolor);
  for (const [v, label] of y.ticks) {
    if (layout.yaxis.showgrid !== false) node(svg, "line", { x1: left, x2: right, y1: y.at(v), y2: y.at(v), stroke: rule });
    node(svg, "text", { x: left - 8, y: y.at(v) + 4, fill: muted, "text-anchor": "end" }, fitted(label, left - 10));
  }
  let free = 0;
  for (const [v, label] of x.ticks) {
    const half = widthOf(label) / 2, middle = Math.min(Math.max(x.at(v), half), right + 12 - half);
    if (layout.xaxis.showgrid) node(svg, "line", { x1: x.at(v), x2: x.at(v), y1: top, y2: bottom, stroke: rule });
    if (middle - half < free) continue; // would overlap the one before
    free = middle + half + 6;
    node(svg, "text", { x: middle, y: bottom + 18, fill: muted, "text-anchor": "middle" }, label);
  }
  node(svg, "text", { x: (left + right) / 2, y: bottom + 37, fill: muted, "text-anchor": "middle", class: "xtitle" }, layout.xaxis.title?.text ?? "");
  const centre = (top + bottom) / 2;
  if (layout.yaxis.title?.text) node(svg, "text", { x: 12, y: centre, fill: muted, "text-anchor": "middle", transform: `rotate(-90 12 ${centre})` }, layout.yaxis.title.text);
}

function fitted(label, room) {
  let text = String(label);
  while (text.length > 2 && widthOf(text) > room) text = text.slice(0, -2).trimEnd() + "…";
  return text;
}

function shapeOf(place, shape, { left, right, y }, tone) {
  const [a, b] = [y.at(shape.y0), y.at(shape.y1)];
  if (shape.type === "rect") node(place, "rect", { x: left, width: right - left, y: Math.min(a, b), height: Math.abs(a - b), fill: tone(shape.fillcolor) });
  else node(place, "line", { x1: left, x2: right, y1: a, y2: a, stroke: tone(shape.line.color), "stroke-dasharray": DASHES.dot });
}

function pathOf(points) { // gaps where a value is missing
  let path = "", drawing = false;
  for (const p of points) {
    if (p) path += `${drawing ? "L" : "M"}${p[0].toFixed(1)} ${p[1].toFixed(1)}`;
    drawing = Boolean(p);
  }
  return path;
}

function curve(place, trace, before, { x, y }, tone, spots) {
  const point = (t) => t.x.map((v, i) => {
    const p = t.y[i] === null || t.y[i] === undefined || (y.log && t.y[i] <= 0) ? null : [x.at(v), y.at(t.y[i])];
    return p && Number.isFinite(p[0]) && Number.isFinite(p[1]) ? p : null;
  });
  const points = point(trace), style = trace.line ?? {}, colour = tone(style.color ?? trace.marker?.color);
  if (trace.fill === "tonexty") {
    const edge = [...points, ...point(before).reverse()].filter(Boolean);
    if (edge.length) node(place, "path", { d: `${pathOf(edge)}Z`, fill: tone(trace.fillcolor), class: "js-fill" });
  } else if (trace.mode !== "markers" && style.width !== 0) {
    node(place, "path", { d: pathOf(points), fill: "none", stroke: colour, "stroke-width": style.width ?? 2, "stroke-dasharray": DASHES[style.dash], "stroke-linejoin": "round", "stroke-linecap": "round", opacity: trace.opacity, class: "js-line" });
  }
  points.forEach((p, i) => {
    if (!p) return;
    const size = Array.isArray(trace.marker?.size) ? trace.marker.size[i] : trace.marker?.size ?? 6;
    const [cx, cy] = p;
    if (trace.marker?.symbol === "x") node(place, "path", { d: `M${cx - 5} ${cy - 5}l10 10m0 -10l-10 10`, stroke: tone(trace.marker.color), "stroke-width": 2.5 });
    else if (trace.mode?.includes("markers")) node(place, "circle", { cx, cy, r: size / 2, fill: tone(trace.marker?.color ?? style.color), opacity: trace.marker?.opacity });
    if (trace.hoverinfo !== "skip") spots.push([cx, cy, trace, i]);
  });
}

function barsOf(place, trace, k, n, layout, { x, y }, tone, spots) {
  const across = trace.orientation === "h", along = across ? x : y, places = across ? y : x, base = trace.base ?? 0;
  const room = (places.size ?? 10) * (1 - (layout.bargap ?? 0.2)), thick = room / n;
  (across ? trace.y : trace.x).forEach((name, i) => {
    const value = (across ? trace.x : trace.y)[i];
    if (value === null) return;
    const [start, end] = [along.at(base), along.at(base + value)].sort((a, b) => a - b), side = places.at(name) - room / 2 + k * thick;
    const fill = tone(Array.isArray(trace.marker.color) ? trace.marker.color[i] : trace.marker.color);
    const shape = across ? { x: start, y: side, width: end - start, height: thick } : { x: side, y: start, width: thick, height: end - start };
    node(place, "rect", { ...shape, fill, rx: 1.5 });
    if (trace.error_y) {
      const spread = trace.error_y.array[i], middle = side + thick / 2, ends = [y.at(value - spread), y.at(value + spread)];
      node(place, "path", { d: `M${middle} ${ends[0]}V${ends[1]}M${middle - 5} ${ends[0]}h10M${middle - 5} ${ends[1]}h10`, stroke: tone(trace.error_y.color), fill: "none" });
    }
    spots.push([shape.x, shape.y, trace, i, shape.width, shape.height]);
  });
}

function upper(svg, trace, { x, top: below }, top, axis, tone, spots) { // small bars above a heat map
  const bottom = below - 6, most = Math.max(...trace.y), wide = 0.85 * x.size;
  trace.y.forEach((value, i) => {
    const tall = ((bottom - top) * value) / most, shape = { x: x.at(trace.x[i]) - wide / 2, y: bottom - tall, width: wide, height: tall };
    node(svg, "rect", { ...shape, fill: tone(trace.marker.color) });
    spots.push([shape.x, top, trace, i, wide, bottom - top]);
  });
  node(svg, "text", { x: x.at(trace.x[0]) - x.size / 2 - 8, y: top + 10, fill: tone(axis.color), "text-anchor": "end" }, number(most));
}

function cells(place, trace, { x, y, right, top, bottom }, tone, spots) {
  const values = trace.z.flat().filter((v) => v !== null), least = trace.zmin ?? Math.min(...values), most = trace.zmax ?? Math.max(...values);
  const colours = trace.colorscale.map(([, colour]) => tone(colour)), shade = (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (colours.length - 1), k = Math.min(Math.floor(at), colours.length - 2);
    const [a, b] = [colours[k], colours[k + 1]].map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
    return a.map((v, i) => Math.round(v + (at - k) * (b[i] - v)));
  };
  const gap = Math.min(trace.xgap ?? 0, x.size / 4);
  trace.z.forEach((row, j) => row.forEach((value, i) => {
    if (value === null) return;
    const [r, g, b] = shade((value - least) / (most - least || 1)), left = x.at(trace.x[i]) - x.size / 2, upside = y.at(trace.y[j]) - y.size / 2;
    node(place, "rect", { x: left, y: upside, width: x.size - gap, height: y.size - (trace.ygap ?? 0), fill: `rgb(${r},${g},${b})` });
    const text = trace.text?.[j][i];
    if (text && widthOf(text) < x.size - 4) node(place, "text", { x: left + x.size / 2, y: upside + y.size / 2 + 4, "text-anchor": "middle", fill: 0.3 * r + 0.6 * g + 0.1 * b > 140 ? "#1a1e23" : "#fff" }, text);
    spots.push([left, upside, trace, i, x.size, y.size, j]);
  }));
  const tall = bottom - top;
  for (let k = 0; k < 24; k++) node(place.parentNode, "rect", { x: right + 10, y: bottom - ((k + 1) * tall) / 24, width: 8, height: tall / 24 + 0.5, fill: `rgb(${shade(k / 23)})` });
  for (const [v, at] of [[least, bottom], [most, top + 9]]) node(place.parentNode, "text", { x: right + 22, y: at, fill: tone(page.muted) }, number(v, ".3g"));
}

function contour(place, trace, { x, y }, tone) { // marching squares
  const flat = trace.z.flat(), low = Math.min(...flat), high = Math.max(...flat);
  for (const level of steps(low, high, 12)) {
    let path = "";
    for (let j = 0; j + 1 < trace.y.length; j++)
      for (let i = 0; i + 1 < trace.x.length; i++) {
        const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]], found = [];
        corners.forEach(([a, b], k) => {
          const [c, d] = corners[(k + 1) % 4], p = trace.z[b][a] - level, q = trace.z[d][c] - level;
          if (p < 0 === q < 0) return;
          const s = p / (p - q), mix = (list, m, n) => list[m] + s * (list[n] - list[m]);
          found.push([x.at(mix(trace.x, a, c)), y.at(mix(trace.y, b, d))]);
        });
        for (let k = 0; k + 1 < found.length; k += 2) path += pathOf([found[k], found[k + 1]]);
      }
    node(place, "path", { d: path, fill: "none", stroke: tone(trace.colorscale[1][1]), opacity: 0.4 });
  }
}

function legend(svg, traces, width, tone, toggle) {
  let left = 4, line = 0;
  const shown = traces.filter((t) => t.showlegend !== false && t.name !== undefined);
  for (const trace of shown) {
    const wide = 30 + widthOf(trace.name) + 14, colour = tone(trace.fillcolor ?? trace.line?.color ?? trace.marker?.color);
    if (left > 4 && left + wide > width) [left, line] = [4, line + 1];
    const entry = node(svg, "g", { class: "entry", opacity: trace.visible === false ? 0.35 : 1 }), middle = 10 + 20 * line;
    if (trace.fill || trace.type === "bar") node(entry, "rect", { x: left, y: middle - 5, width: 20, height: 10, fill: colour });
    else if (trace.mode === "markers") node(entry, "circle", { cx: left + 12, cy: middle, r: 4, fill: colour });
    else node(entry, "line", { x1: left, x2: left + 20, y1: middle, y2: middle, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": DASHES[trace.line?.dash] });
    node(entry, "text", { x: left + 26, y: middle + 4, fill: tone(page.muted) }, fitted(trace.name, width - 34));
    node(entry, "rect", { x: left - 2, y: middle - 10, width: wide - 8, height: 20, fill: "transparent" });
    entry.addEventListener("click", () => toggle(trace.name));
    left += wide;
  }
  return shown.length ? 20 * line + 32 : 8;
}
