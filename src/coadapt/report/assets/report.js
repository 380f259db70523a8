"use strict";
// Draws the figures of a report from the JSON in the page. Text goes in as text nodes only: names of jobs
// and runs come from users and are never parsed as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs;
  const hidden = new Set();
  const state = { run: 0, job: null, sort: "at", down: false, filter: "", rows: 25 };
  const $ = (id) => document.getElementById(id);
  const colour = (i) => `var(--c${i % 8})`;
  const dash = (i) => (i >= 8 ? "6 3" : null);
  const multi = runs.length > 1;

  // -- elements -----------------------------------------------------------------------------------
  const NS = "http://www.w3.org/2000/svg";
  function make(el, attrs, kids) {
    for (const [k, v] of Object.entries(attrs || {})) {
      if (v === null || v === undefined) continue;
      if (k === "style") Object.assign(el.style, v);
      else if (k.startsWith("on")) el.addEventListener(k.slice(2), v);
      else el.setAttribute(k, v);
    }
    for (const kid of kids || []) if (kid !== null) el.append(kid);
    return el;
  }
  const h = (tag, attrs, ...kids) => make(document.createElement(tag), attrs, kids);
  const s = (tag, attrs, ...kids) => make(document.createElementNS(NS, tag), attrs, kids);

  // -- numbers ------------------------------------------------------------------------------------
  const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  function time(x) {
    if (x === null || x === undefined) return "–";
    if (x < 10) return `${+x.toPrecision(2)}s`;
    let rest = Math.round(x);
    const parts = [];
    for (const [size, name] of UNITS) {
      const n = Math.floor(rest / size);
      rest -= n * size;
      if (n || parts.length) parts.push([n, name]);
      if (parts.length === 2) break;
    }
    return parts.filter(([n], i) => n || !i).map(([n, u]) => n + u).join(" ");
  }
  const num = (x) => x === null || x === undefined ? "–" : Math.abs(x) >= 100 ? Math.round(x).toLocaleString("en") : String(+(+x).toPrecision(3));
  // one form for a whole column, so that its digits stand under each other
  const whole = (x) => x === null || x === undefined ? "–" : Math.round(x).toLocaleString("en");
  const fixed = (digits) => (x) => x === null || x === undefined ? "–" : (+x).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const percent = (x) => x === null || x === undefined ? "–" : `${(100 * x).toFixed(1)}%`;
  const share = (x) => x === null || x === undefined ? "–" : `${(100 * x).toFixed(x && x < 0.1 ? 1 : 0)}%`;
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 28800, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31104000];
  function ticks(lo, hi, n, kind) {
    if (kind === "logtime" || kind === "log") {
      const marks = kind === "log" ? [] : [0.01, 0.1, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400, 259200, 864000, 2592000, 8640000];
      if (kind === "log") for (let e = -6; e < 10; e++) for (const m of hi / lo < 300 ? [1, 2, 5] : [1]) marks.push(m * 10 ** e);
      return marks.filter((t) => t >= lo * 0.999 && t <= hi * 1.001);
    }
    const raw = (hi - lo) / n || 1;
    let step = kind === "time" ? STEPS.find((x) => x >= raw) : undefined;
    if (!step) {
      const p = 10 ** Math.floor(Math.log10(raw));
      step = [1, 2, 5, 10].map((m) => m * p).find((x) => x >= raw * 0.999);
    }
    const out = [];
    for (let t = Math.ceil(lo / step - 1e-9) * step; t <= hi + step * 1e-6; t += step) out.push(t);
    return out;
  }

  // -- tooltip --------------------------------------------------------------------------------------
  const tip = $("tip");
  function showTip(event, title, rows) {
    tip.replaceChildren(h("b", {}, title), ...rows.map(([c, label, value]) =>
      h("div", {}, c ? h("span", { class: "swatch", style: { background: c } }) : null, h("span", {}, label), h("span", {}, value))));
    tip.hidden = false;
    const w = tip.offsetWidth, t = tip.offsetHeight;
    tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - w - 8))}px`;
    tip.style.top = `${event.clientY + 18 + t > innerHeight ? event.clientY - t - 12 : event.clientY + 18}px`;
  }
  const hideTip = () => { tip.hidden = true; };

  // -- axes -----------------------------------------------------------------------------------------
  function frame(box, height, o) {
    const width = Math.max(240, box.clientWidth), m = { l: o.left || 46, r: 14, t: o.top || 8, b: o.bottom === undefined ? 34 : o.bottom };
    const log = o.kind === "logtime" || o.kind === "log";
    const f = log ? Math.log : (x) => x;
    const [x0, x1] = o.x, [y0, y1] = o.y;
    const px = (x) => m.l + (f(Math.max(x, log ? x0 : x)) - f(x0)) / (f(x1) - f(x0) || 1) * (width - m.l - m.r);
    const py = (y) => height - m.b - (y - y0) / (y1 - y0 || 1) * (height - m.t - m.b);
    const back = (p) => { const u = f(x0) + (p - m.l) / (width - m.l - m.r) * (f(x1) - f(x0)); return log ? Math.exp(u) : u; };
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": o.label || "" });
    for (const y of o.yticks || ticks(y0, y1, Math.max(2, (height - m.t - m.b) / 45), "lin")) {
      svg.append(s("line", { class: "grid", x1: m.l, x2: width - m.r, y1: py(y), y2: py(y) }),
        s("text", { x: m.l - 8, y: py(y) + 4, "text-anchor": "end" }, o.yfmt ? o.yfmt(y) : num(y)));
    }
    if (m.b > 20) {
      svg.append(s("line", { class: "axis", x1: m.l, x2: width - m.r, y1: height - m.b, y2: height - m.b }));
      const marks = ticks(x0, x1, Math.max(2, width / 105), o.kind || "time");
      let last = -99;
      for (const x of marks) {
        if (px(x) - last < 38) continue;
        last = px(x);
        svg.append(s("line", { class: "axis", x1: px(x), x2: px(x), y1: height - m.b, y2: height - m.b + 4 }),
          s("text", { x: px(x), y: height - m.b + 17, "text-anchor": "middle" }, (o.kind || "time").includes("time") ? (x === 0 ? "0" : time(x)) : num(x)));
      }
      if (o.xlabel) svg.append(s("text", { x: width - m.r, y: height - 3, "text-anchor": "end" }, o.xlabel));
    }
    return { svg, px, py, back, width, height, m };
  }
  function path(points, px, py, step) {
    let d = "", pen = false, prev = null;
    for (const [x, y] of points) {
      if (y === null) { pen = false; continue; }
      const X = px(x).toFixed(1), Y = py(y).toFixed(1);
      d += !pen ? `M${X} ${Y}` : step ? `H${X}V${Y}` : `L${X} ${Y}`;
      pen = true; prev = X;
    }
    return prev === null ? "" : d;
  }
  // the last point at or before x
  function at(points, x) {
    let lo = 0, hi = points.length - 1, found = null;
    while (lo <= hi) { const mid = (lo + hi) >> 1; if (points[mid][0] <= x) { found = points[mid]; lo = mid + 1; } else hi = mid - 1; }
    return found;
  }
  function hover(f, onMove) {
    const cursor = s("line", { class: "cursor", y1: f.m.t, y2: f.height - f.m.b, visibility: "hidden" });
    f.svg.append(cursor);
    const move = (e) => {
      const r = f.svg.getBoundingClientRect(), p = (e.clientX - r.left) * f.width / r.width;
      if (p < f.m.l - 4 || p > f.width - f.m.r + 4) return leave();
      cursor.setAttribute("x1", p); cursor.setAttribute("x2", p); cursor.setAttribute("visibility", "visible");
      onMove(e, f.back(p));
    };
    const leave = () => { cursor.setAttribute("visibility", "hidden"); hideTip(); };
    make(f.svg, { onpointermove: move, onpointerdown: move, onpointerleave: leave });
  }
  function lines(id, list, o) {
    const box = $(id);
    const all = list.filter((l) => l.points.some((p) => p[1] !== null));
    if (!all.length) { box.replaceChildren(h("p", { class: "empty" }, o.empty || "Nothing to show.")); return; }
    const seen = all.filter((l) => !hidden.has(l.run));
    const f = frame(box, o.height || Math.round(Math.min(300, Math.max(210, box.clientWidth * 0.56))), o);
    for (const ref of o.refs || []) {
      f.svg.append(s("line", { class: "ref", x1: f.px(ref.x), x2: f.px(ref.x), y1: f.m.t, y2: f.height - f.m.b }),
        s("text", { x: f.px(ref.x) + 5, y: f.height - f.m.b - 8 }, ref.label));
    }
    for (const l of seen) f.svg.append(s("path", { class: "line", d: path(l.points, f.px, f.py, l.step), stroke: colour(l.run), "stroke-dasharray": dash(l.run) }));
    if (o.title) f.svg.append(s("text", { class: "title", x: f.m.l, y: 11 }, o.title));
    hover(f, (e, x) => showTip(e, o.tipx(x), seen.map((l) => {
      const p = at(l.points, x);
      const over = o.clip && p === l.points[l.points.length - 1] && x > p[0] + (l.width || 0);
      return [colour(l.run), runs[l.run].name, over ? "–" : o.tipy(p ? p[1] : o.before === undefined ? null : o.before)];
    })));
    box.replaceChildren(f.svg);
  }
  function legend(id) {
    const box = $(id);
    if (!multi) { box.replaceChildren(); return; }
    box.replaceChildren(...runs.map((r, i) => h("button", {
      type: "button", "aria-pressed": String(!hidden.has(i)),
      onclick: () => { if (hidden.has(i)) hidden.delete(i); else if (hidden.size < runs.length - 1) hidden.add(i); draw(); },
    }, h("span", { class: "swatch", style: { background: colour(i) } }), r.name)));
  }

  // -- distributions ----------------------------------------------------------------------------------
  function cdf(id, key, o) {
    const list = runs.map((r, run) => ({ run, step: true, points: r[key].length ? [[r[key][0][0], 0], ...r[key]] : [] }));
    const xs = list.flatMap((l) => l.points.map((p) => p[0])).filter((x) => x > 0);
    const lo = Math.min(...xs, ...(o.include || [])), hi = Math.max(...xs, ...(o.include || []));
    lines(id, list, { ...o, x: [lo / 1.05, hi * 1.05], y: [0, 1], yfmt: share, yticks: [0, 0.25, 0.5, 0.75, 1], tipy: (v) => `${share(v)} of jobs`, before: 0 });
  }

  // -- series over time ---------------------------------------------------------------------------------
  function series(run, key, want) {
    const { width, values } = runs[run].series[key];
    const by = Math.max(1, Math.ceil(values.length / want)), out = [];
    for (let i = 0; i < values.length; i += by) {
      const part = values.slice(i, i + by).filter((v) => v !== null);
      out.push([i * width, part.length ? part.reduce((a, b) => a + b, 0) / part.length : null]);
    }
    return { points: out, width: by * width };
  }
  const end = Math.max(...runs.map((r) => r.end), 1e-6);
  function over(id, key, o) {
    const want = Math.max(60, $(id).clientWidth / 3);
    const list = runs.map((r, run) => ({ run, step: true, ...series(run, key, want) }));
    const top = o.top1 ? 1 : Math.max(1, ...list.flatMap((l) => l.points.map((p) => p[1] || 0))) * 1.05;
    lines(id, list, { ...o, x: [0, end], y: [0, top], tipx: (x) => `after ${time(x)}`, clip: true, xlabel: "since the log began" });
  }
  function strips() {
    const box = $("gpus"), shown = runs.map((_, i) => i).filter((i) => !hidden.has(i));
    box.replaceChildren(...shown.map((i, k) => {
      const last = k === shown.length - 1, want = Math.max(60, box.clientWidth / 2);
      const held = series(i, "held", want), lost = series(i, "changing", want), there = series(i, "available", want);
      const top = Math.max(1, ...there.points.map((p) => p[1] || 0));
      const f = frame(box, last ? 118 : 92, { x: [0, end], y: [0, top], yticks: [0, top], top: 22, bottom: last ? 34 : 8, label: `GPUs held, ${runs[i].name}`, xlabel: last ? "since the log began" : "" });
      const area = (sr, fill) => {
        const pts = [...sr.points, [Math.min(runs[i].end, sr.points.length * sr.width), 0]];
        f.svg.append(s("path", { d: `M${f.px(0)} ${f.py(0)}` + path(pts, f.px, f.py, true).replace("M", "L") + "Z", fill, stroke: "none" }));
      };
      area(held, colour(i)); area(lost, "var(--ink)");
      f.svg.append(s("path", { d: path([...there.points, [runs[i].end, there.points[there.points.length - 1][1]]], f.px, f.py, true), class: "ref", fill: "none" }));
      f.svg.append(s("text", { class: "title", x: f.m.l, y: 14 }, runs[i].name),
        s("text", { x: f.width - f.m.r, y: 14, "text-anchor": "end" }, `${share(runs[i].summary.utilisation)} held, ${share(runs[i].summary.restart_share)} of that in changes`));
      hover(f, (e, x) => {
        const v = (sr) => x > runs[i].end ? null : (at(sr.points, x) || [0, null])[1];
        showTip(e, `${runs[i].name}, after ${time(x)}`, [[colour(i), "GPUs held", num(v(held))], ["var(--ink)", "of these changing", num(v(lost))], ["var(--faint)", "available", num(v(there))]]);
      });
      return f.svg;
    }));
  }

  // -- jobs over time --------------------------------------------------------------------------------------
  function mix(t) {
    const css = getComputedStyle(document.documentElement), hex = (n) => { const v = css.getPropertyValue(n).trim(); return [1, 3, 5].map((i) => parseInt(v.slice(i, i + 2), 16)); };
    const [a, b, u] = t < 0.5 ? [hex("--lo"), hex("--mid"), t * 2] : [hex("--mid"), hex("--hi"), t * 2 - 1];
    return `rgb(${a.map((x, i) => Math.round(x + (b[i] - x) * u)).join(" ")})`;
  }
  function tabs(id) {
    $(id).replaceChildren(...(multi ? runs : []).map((r, i) => h("button", {
      type: "button", "aria-pressed": String(i === state.run), onclick: () => { state.run = i; draw(); },
    }, h("span", { class: "swatch", style: { background: colour(i) } }), r.name)));
  }
  function gantt() {
    const box = $("gantt");
    if (!data.detail) { box.replaceChildren(h("p", { class: "empty" }, "This report was made without per-job detail.")); return; }
    const jobs = runs[state.run].jobs, most = Math.max(2, ...runs.flatMap((r) => r.jobs.flatMap((j) => (j.stays || []).map((t) => t[2]))));
    $("most").textContent = `${most} GPUs`;
    const row = Math.max(2.5, Math.min(12, 760 / jobs.length)), height = Math.ceil(jobs.length * row) + 46;
    const short = (id) => id.length > 16 ? `${id.slice(0, 15)}…` : id;
    const left = row >= 9 && box.clientWidth > 560 ? Math.min(112, 14 + 6 * Math.max(...jobs.map((j) => short(j.id).length))) : 8;
    const f = frame(box, height, { x: [0, end], y: [0, 1], yticks: [], top: 4, left, label: "Jobs over time", xlabel: "since the log began" });
    const shades = new Map();
    const shade = (g) => { if (!shades.has(g)) shades.set(g, mix(Math.log2(g) / Math.log2(most))); return shades.get(g); };
    jobs.forEach((job, k) => {
      const y = f.m.t + k * row, stop = job.end === null ? runs[state.run].end : job.end;
      // a name where there is room; the tip has it in any case
      if (left > 8) f.svg.append(s("text", { class: "name", x: left - 6, y: y + row * 0.5 + 3.5, "text-anchor": "end" }, short(job.id)));
      f.svg.append(s("line", { x1: f.px(job.at), x2: f.px(stop), y1: y + row / 2, y2: y + row / 2, stroke: "var(--idle)", "stroke-width": Math.min(1, row / 3) }));
      for (const [a, b, g, training] of job.stays || []) {
        f.svg.append(s("rect", { x: f.px(a).toFixed(1), width: Math.max(0.6, f.px(b) - f.px(a)).toFixed(1), y: (y + row * 0.1).toFixed(1), height: (row * 0.8).toFixed(1), fill: training ? shade(g) : "var(--change)" }));
      }
    });
    hover(f, (e, x) => {
      const r = f.svg.getBoundingClientRect(), k = Math.floor(((e.clientY - r.top) * f.height / r.height - f.m.t) / row), job = jobs[k];
      if (!job) return hideTip();
      const stay = (job.stays || []).find((t) => t[0] <= x && x < t[1]);
      const doing = x < job.at ? "not submitted" : stay ? `${stay[2]} GPUs, ${stay[3] ? "training" : "changing"}` : job.end !== null && x >= job.end ? job.state : "waiting";
      showTip(e, `${job.id}${job.name && job.name !== job.id ? ` (${job.name})` : ""}`, [[null, `after ${time(x)}`, doing], [null, "JCT", time(job.jct)], [null, "restarts", String(job.restarts)]]);
    });
    f.svg.addEventListener("click", (e) => {
      const r = f.svg.getBoundingClientRect(), job = jobs[Math.floor(((e.clientY - r.top) * f.height / r.height - f.m.t) / row)];
      if (job) pick(job.id);
    });
    f.svg.style.cursor = "pointer";
    box.replaceChildren(f.svg);
  }

  // -- one job ------------------------------------------------------------------------------------------------
  function pick(id) { state.job = id; $("which").value = id; life(); rows(); }
  function life() {
    const lives = runs.map((r, run) => ({ run, job: r.jobs.find((j) => j.id === state.job) })).filter((l) => l.job);
    const box = $("life-about");
    if (!lives.length) {
      box.textContent = "No job with this name is in the sample.";
      for (const id of ["life-gpus", "life-batch", "life-eff"]) $(id).replaceChildren();
      return;
    }
    const shown = lives.filter((l) => !hidden.has(l.run));
    const first = lives[0].job;
    box.textContent = `${first.name && first.name !== first.id ? `${first.name}, ` : ""}requested ${first.asked} GPU${first.asked === 1 ? "" : "s"}. ` +
      shown.map((l) => `${multi ? `${runs[l.run].name}: ` : ""}${l.job.jct === null ? l.job.state : time(l.job.jct)}, ${l.job.restarts} restart${l.job.restarts === 1 ? "" : "s"}`).join("; ") + "." +
      (first.why ? ` Last reason: ${first.why}` : "");
    const span = Math.max(1e-6, ...shown.map((l) => (l.job.end === null ? runs[l.run].end : l.job.end) - l.job.at));
    const base = { x: [0, span], tipx: (x) => `${time(x)} after submission`, left: 56, top: 20, clip: true };
    const gpus = lives.map(({ run, job }) => {
      const points = job.stays ? [[0, 0]] : [];
      for (const [a, b, g] of job.stays || []) {
        if (points[points.length - 1][0] === a - job.at) points.pop();
        points.push([a - job.at, g], [b - job.at, 0]);
      }
      return { run, step: true, points };
    });
    const from = (k) => lives.map(({ run, job }) => ({ run, step: k === 1, points: (job.progress || []).map((p) => [p[0] - job.at, p[k]]), width: span }));
    const peak = (list) => Math.max(1, ...list.flatMap((l) => l.points.map((p) => p[1] || 0))) * 1.08;
    const batch = from(1), eff = from(2);
    const any = (list) => list.some((l) => l.points.some((p) => p[1] !== null));
    const rest = any(batch) || any(eff);
    lines("life-gpus", gpus, { ...base, title: "GPUs", y: [0, peak(gpus)], height: rest ? 150 : 190, bottom: rest ? 8 : 34, tipy: num, xlabel: rest ? "" : "since submission", empty: "It held no GPUs, or this history was kept without detail." });
    $("life-batch").hidden = $("life-eff").hidden = !rest;
    if (!rest) return;
    lines("life-batch", batch, { ...base, title: "Batch size, examples", y: [0, peak(batch)], height: 140, bottom: 8, tipy: num, clip: false });
    lines("life-eff", eff, { ...base, title: "Statistical efficiency", y: [0, 1.04], yticks: [0, 0.5, 1], height: 150, tipy: share, yfmt: share, xlabel: "since submission", clip: false, empty: "It reported no gradient statistics." });
  }

  // -- the table ----------------------------------------------------------------------------------------------
  const COLUMNS = [["id", "job", "text"], ["name", "name", "text"], ["user", "user", "text"], ["at", "submitted", time], ["wait", "waited", time], ["jct", "JCT", time],
    ["asked", "GPUs asked", whole], ["gpus", "GPUs held", fixed(1)], ["hours", "GPU hours", fixed(1)], ["restarts", "restarts", whole], ["eff", "efficiency", percent], ["rho", "rho", fixed(2)], ["state", "state", "text"]];
  const columns = COLUMNS.filter(([k]) => k === "id" || runs.some((r) => r.jobs.some((j) => k === "name" ? j.name && j.name !== j.id : k === "restarts" || (j[k] !== null && j[k] !== ""))));
  function rows() {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const jobs = runs[state.run].jobs.filter((j) => words.every((w) => `${j.id} ${j.name} ${j.user} ${j.state}`.toLowerCase().includes(w)));
    const k = state.sort, text = columns.some((c) => c[0] === k && c[2] === "text");
    // what is not known comes last, whichever way the rest is sorted
    const blank = (v) => v === null || v === undefined || v === "";
    jobs.sort((a, b) => blank(a[k]) || blank(b[k]) ? blank(a[k]) - blank(b[k])
      : (state.down ? -1 : 1) * (text ? String(a[k]).localeCompare(String(b[k]), "en", { numeric: true }) : a[k] - b[k]));
    $("head").replaceChildren(h("tr", {}, ...columns.map(([key, title, kind]) => h("th", { scope: "col", class: kind === "text" ? "text" : null, "aria-sort": key === k ? (state.down ? "descending" : "ascending") : null },
      h("button", { type: "button", tabindex: 0, onclick: () => { state.down = key === k ? !state.down : kind !== "text" && key !== "at"; state.sort = key; rows(); } }, title)))));
    $("body").replaceChildren(...jobs.slice(0, state.rows).map((j) => h("tr", { "aria-selected": String(j.id === state.job), onclick: () => pick(j.id) },
      ...columns.map(([key, , kind]) => h("td", { class: kind === "text" ? "text" : null, title: kind === "text" ? j[key] : null }, kind === "text" ? j[key] : kind(j[key]))))));
    $("more").hidden = jobs.length <= state.rows;
    $("count").textContent = `${whole(jobs.length)} job${jobs.length === 1 ? "" : "s"}${jobs.length > state.rows ? `, first ${state.rows} shown` : ""}`;
  }

  // -- all of it -------------------------------------------------------------------------------------------------
  function draw() {
    for (const id of ["l-jct", "l-rho", "l-eff", "l-queue", "l-life"]) legend(id);
    cdf("jct", "jct", { kind: "logtime", tipx: (x) => `within ${time(x)}`, xlabel: "JCT", label: "Distribution of JCT", empty: "No job finished." });
    cdf("rho", "rho", { kind: "log", tipx: (x) => `rho up to ${num(x)}`, xlabel: "rho", include: [0.9, 1.1], refs: [{ x: 1, label: "fair" }], label: "Distribution of finish-time fairness", empty: "Not known: it needs the time each job would take alone." });
    strips();
    over("eff", "efficiency", { top1: true, yticks: [0, 0.25, 0.5, 0.75, 1], yfmt: share, tipy: share, label: "Statistical efficiency over time", empty: "Not known: no job reported gradient statistics." });
    over("queue", "queued", { tipy: num, label: "Jobs waiting over time" });
    tabs("t-gantt"); tabs("t-jobs");
    gantt(); life(); rows();
  }
  const named = runs.flatMap((r) => r.jobs);
  const ids = [...new Set(named.map((j) => j.id))];
  $("names").replaceChildren(...ids.map((id) => h("option", { value: id })));
  const busiest = named.reduce((a, b) => (!a || b.restarts > a.restarts ? b : a), null);
  state.job = busiest ? busiest.id : null;
  $("which").value = state.job || "";
  make($("which"), { onchange: (e) => pick(e.target.value), onfocus: (e) => e.target.select() });
  make($("filter"), { oninput: (e) => { state.filter = e.target.value; state.rows = 25; rows(); } });
  make($("more"), { onclick: () => { state.rows += 100; rows(); } });
  draw();
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth; cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
