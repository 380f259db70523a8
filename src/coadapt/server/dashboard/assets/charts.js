// A job's course as small charts: each a curve over the time since it was submitted, with a dashed line where something was decided.
"use strict";
(() => {
  const place = document.getElementById("charts");
  const W = 320, H = 120, LEFT = 40, RIGHT = 8, TOP = 8, BOTTOM = 18;
  const FIXED = [
    ["gpus", "GPUs", true, true], ["batch", "Batch", true, true], ["efficiency", "Statistical efficiency", false, true, 1],
    ["goodput", "Goodput, useful examples/s", false, true], ["progress", "Progress", false, true, 1],
  ];

  function make(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function figure(value) {
    const size = Math.abs(value);
    if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
    if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3)));
  }

  function duration(s) {
    return s >= 86400 ? `${(s / 86400).toFixed(1)}d` : s >= 3600 ? `${(s / 3600).toFixed(1)}h` : s >= 60 ? `${Math.round(s / 60)}m` : `${Math.round(s)}s`;
  }

  function draw(title, points, steps, fromZero, atLeast, span, changes) {
    const values = points.map((point) => point[1]);
    let low = fromZero ? Math.min(0, ...values) : Math.min(...values), high = Math.max(atLeast, ...values);
    if (high === low) { high += Math.abs(high) * 0.1 || 1; low -= fromZero ? 0 : Math.abs(low) * 0.1 || 1; }
    const [from, to] = span;
    const x = (at) => LEFT + (at - from) / (to - from) * (W - LEFT - RIGHT);
    const y = (value) => H - BOTTOM - (value - low) / (high - low) * (H - TOP - BOTTOM);
    const current = points[points.length - 1][1];
    const svg = make("svg", {
      viewBox: `0 0 ${W} ${H}`, role: "img",
      "aria-label": `${title} over ${duration(to - from)}: from ${figure(Math.min(...values))} to ${figure(Math.max(...values))}, last ${figure(current)}`,
    });
    for (const value of [low, high]) {
      svg.append(make("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }));
      svg.append(make("text", { x: LEFT - 4, y: y(value) + 3, "text-anchor": "end" }, figure(value)));
    }
    svg.append(make("text", { x: LEFT, y: H - 4 }, "0"), make("text", { x: W - RIGHT, y: H - 4, "text-anchor": "end" }, duration(to - from)));
    for (const change of changes) {
      const line = make("line", { class: "change", x1: x(change.at), x2: x(change.at), y1: TOP, y2: H - BOTTOM });
      line.append(make("title", {}, change.text));
      svg.append(line);
    }
    let path = "", before = null;
    for (const [at, value] of points) {
      path += before === null ? `M${x(at)},${y(value)}` : steps ? `L${x(at)},${y(before)}L${x(at)},${y(value)}` : `L${x(at)},${y(value)}`;
      before = value;
    }
    if (steps) path += `L${x(to)},${y(before)}`;
    svg.append(make("path", { class: "curve", d: path }));
    if (points.length === 1 && !steps) svg.append(make("circle", { class: "dot", cx: x(points[0][0]), cy: y(points[0][1]), r: 3 }));
    const caption = document.createElement("figcaption"), name = document.createElement("bdi"), now = document.createElement("b");
    name.textContent = title;
    now.textContent = figure(current);
    caption.append(name, now);
    const cursor = make("line", { class: "cursor", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
    svg.append(cursor);
    svg.addEventListener("pointermove", (event) => {
      const at = from + ((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth * W - LEFT) / (W - LEFT - RIGHT) * (to - from);
      const seen = points.filter((point) => point[0] <= at).at(-1);
      if (!seen) return;
      now.textContent = `${figure(seen[1])} at ${duration(seen[0] - from)}`;
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(steps ? Math.min(at, to) : seen[0]));
      cursor.setAttribute("visibility", "visible");
    });
    svg.addEventListener("pointerleave", () => { now.textContent = figure(current); cursor.setAttribute("visibility", "hidden"); });
    const made = document.createElement("figure");
    made.append(caption, svg);
    return made;
  }

  function all(course) {
    const kinds = [...FIXED];
    const metrics = new Set(course.points.flatMap((point) => Object.keys(point.metrics)));
    for (const name of [...metrics].sort()) kinds.push([name, name, false, false]);
    const moments = [...course.changes, ...course.points].map((each) => each.at);
    if (!course.points.length) return [];
    const from = Math.min(...moments), span = [from, Math.max(...moments, from + 1)];
    const decided = course.changes.filter((change) => change.kind === "DecisionMade").slice(-100);
    const made = [];
    kinds.forEach(([key, title, steps, fromZero, atLeast = -Infinity], number) => {
      const of = number < FIXED.length ? (point) => point[key] : (point) => point.metrics[key];
      const points = course.points.map((point) => [point.at, of(point)]).filter((point) => Number.isFinite(point[1]));
      if (points.length) made.push(draw(title, points, steps, fromZero, atLeast, span, decided));
    });
    return made;
  }

  let shown = "";
  async function refresh() {
    if (place.matches(":hover") && shown) return;  // somebody reads a value
    const answer = await fetch(place.dataset.course);
    if (!answer.ok) return;
    const text = await answer.text();
    if (text === shown) return;
    shown = text;
    const made = all(JSON.parse(text));
    if (made.length) place.replaceChildren(...made);
  }

  const quietly = () => refresh().catch(() => {});
  document.addEventListener("refreshed", quietly);
  quietly();
})();
