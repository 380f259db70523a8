// Keeps the page fresh. When something happens (/v1/stream), and every so often, the same page is asked for again and its
// parts marked data-live are put in place of the old ones: what is shown is written in one place only, the server's templates.
"use strict";
(() => {
  const QUIET_MS = 10_000, WITHOUT_STREAM_MS = 3_000, LEAST_MS = 1_000;
  const live = document.getElementById("live"), away = document.getElementById("no-answer");
  const written = new Map();
  let stream = null, listening = false, timer = 0, asking = false, again = false, last = Date.now();

  function remember(root) {
    for (const part of root.querySelectorAll("[data-live]")) if (!written.has(part.id)) written.set(part.id, part.innerHTML);
  }

  function tellTimes() {
    for (const each of document.querySelectorAll("time[data-at]")) {
      const moment = new Date(1000 * Number(each.dataset.at));
      each.dateTime = moment.toISOString();
      each.title = moment.toLocaleString();
    }
  }

  function atEnd(pre) {
    return pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
  }

  function put(part, html, fresh) {
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const scrolled = new Map([...part.querySelectorAll("pre[id]")].map((pre) => [pre.id, atEnd(pre) ? null : pre.scrollTop]));
    part.replaceChildren(...document.importNode(fresh, true).childNodes);
    written.set(part.id, html);
    for (const pre of part.querySelectorAll("pre[id]")) pre.scrollTop = scrolled.get(pre.id) ?? pre.scrollHeight;
    if (focused) [...part.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus({ preventScroll: true });
  }

  async function refresh() {
    if (asking) { again = true; return; }
    asking = true;
    clearTimeout(timer);
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(20_000) });
      if (answer.redirected) { location.assign(answer.url); return; }  // the session is over
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const next = fresh.getElementById(part.id);
        if (next && next.innerHTML !== written.get(part.id)) put(part, next.innerHTML, next);
      }
      tellTimes();
      last = Date.now();
      away.hidden = true;
      document.dispatchEvent(new Event("refreshed"));
    } catch {
      document.getElementById("since").textContent = new Date(last).toLocaleTimeString();
      away.hidden = false;
    } finally {
      asking = false;
      say();
      schedule(again ? LEAST_MS : listening ? QUIET_MS : WITHOUT_STREAM_MS);
      again = false;
    }
  }

  function schedule(in_ms) {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(refresh, in_ms);
  }

  function say() {
    live.textContent = !away.hidden ? "no connection" : listening ? "live" : `updated every ${WITHOUT_STREAM_MS / 1000} s`;
    live.classList.toggle("on", away.hidden);
  }

  function happened() {
    // many events at once are one refresh
    schedule(Math.max(LEAST_MS - (Date.now() - last), 100));
  }

  function listen() {
    if (stream || document.hidden) return;
    stream = new EventSource("/v1/stream");
    stream.onopen = () => { listening = true; say(); };
    stream.onerror = () => {
      listening = false;
      say();
      // the browser tries again by itself, except where it was refused
      if (stream && stream.readyState === EventSource.CLOSED) { stream = null; setTimeout(listen, 10_000); }
    };
    for (const kind of document.querySelector("main").dataset.kinds.split(" ")) stream.addEventListener(kind, happened);
  }

  document.addEventListener("visibilitychange", () => {
    // a browser has six connections to a host: tabs that nobody looks at must not hold them
    if (document.hidden) { clearTimeout(timer); stream?.close(); stream = null; listening = false; } else { listen(); refresh(); }
  });
  addEventListener("pagehide", () => stream?.close());

  remember(document);
  tellTimes();
  for (const pre of document.querySelectorAll("pre[id]")) pre.scrollTop = pre.scrollHeight;
  say();
  listen();
  schedule(WITHOUT_STREAM_MS);
})();
