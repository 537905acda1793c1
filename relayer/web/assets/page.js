"use strict";
(() => {
  const $ = (id) => document.getElementById(id);

  // morph makes old like fresh with the fewest changes, so that focus, selection and what a screen reader has read stay.
  function morph(old, fresh) {
    const a = [...old.childNodes], b = [...fresh.childNodes];
    b.forEach((node, i) => {
      const was = a[i];
      if (!was) { old.append(node); return; }
      if (was.nodeType !== node.nodeType || was.nodeName !== node.nodeName) { was.replaceWith(node); return; }
      if (was.nodeType !== Node.ELEMENT_NODE) { if (was.data !== node.data) was.data = node.data; return; }
      for (const { name } of [...was.attributes]) if (!node.hasAttribute(name) && !kept(was, name)) was.removeAttribute(name);
      for (const { name, value } of [...node.attributes]) if (was.getAttribute(name) !== value && !kept(was, name)) was.setAttribute(name, value);
      if (was.id !== "readout") morph(was, node);
    });
    a.slice(b.length).forEach((node) => node.remove());
  }
  // kept are attributes that this script set.
  const kept = (el, name) => el.id === "map-at" || (el.id === "map" && /^(class|role|tabindex|aria-.*)$/.test(name));

  // The stream. A hidden page closes it: nobody looks, and the fleet need not be read for it.
  let stream = null;
  function state(cls, text) { $("live").className = "live " + cls; $("live-state").textContent = text; }
  function open() {
    if (stream || document.hidden) return;
    stream = new EventSource("live");
    stream.onmessage = (e) => {
      const u = JSON.parse(e.data);
      document.title = $("result") ? document.title : u.title;
      if (u.read) $("live-read").textContent = u.read + " UTC";
      for (const [id, html] of Object.entries(u.parts)) {
        const t = document.createElement("template");
        t.innerHTML = html;
        morph($(id), t.content);
      }
      if (u.parts.slots) slots();
      state("on", "live,");
    };
    stream.onerror = () => {
      state("lost", "connection lost, as of");
      if (stream && stream.readyState === EventSource.CLOSED) { close(); setTimeout(open, 5000); } // an error answer: the browser gives up, we do not
    };
  }
  function close() { if (stream) stream.close(); stream = null; }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); state("", "paused, as of"); } else open();
  });
  addEventListener("pagehide", close);

  // The slot map: pointer, arrow keys and touch name a slot; a slider is what assistive technology makes of that.
  let at = -1, picked = "";
  const rest = $("result") ? +($("result").dataset.slot || -1) : -1; // the slot of what was searched for
  const help = $("readout") ? $("readout").textContent : "";
  function slots() {
    const map = $("map");
    if (!map) return;
    if (map.tabIndex !== 0) {
      map.tabIndex = 0;
      for (const [k, v] of Object.entries({ role: "slider", "aria-label": "Slot", "aria-valuemin": 0, "aria-valuemax": map.dataset.cells.length / 3 - 1 })) map.setAttribute(k, v);
      point(rest);
    } else point(at);
    pick(picked);
  }
  function point(slot) {
    const map = $("map"), columns = +map.dataset.columns, cells = map.dataset.cells, box = $("map-at");
    at = slot;
    box.setAttribute("x", slot < 0 ? -2 : slot % columns);
    box.setAttribute("y", slot < 0 ? -2 : Math.floor(slot / columns));
    map.setAttribute("aria-valuenow", Math.max(slot, 0));
    if (slot < 0) { $("readout").textContent = help; map.setAttribute("aria-valuetext", "none"); return; }
    const cell = cells.substr(slot * 3, 3), item = $("owners").children[parseInt(cell.slice(0, 2), 36)];
    const owner = item ? item.querySelector(".id").textContent : "an unknown instance";
    const text = "Slot " + slot + ": " + { p: owner, a: owner + ", adopted", d: "unserved, its owner " + owner + " is dead", f: "unserved, free" }[cell[2]];
    $("readout").textContent = text;
    map.setAttribute("aria-valuetext", text);
  }
  function pick(owner) {
    picked = owner;
    const map = $("map");
    map.classList.toggle("picked", owner !== "");
    for (const path of map.querySelectorAll(".cell")) path.classList.toggle("hot", owner !== "" && path.classList.contains(owner));
  }
  document.addEventListener("pointermove", (e) => {
    const map = $("map");
    if (!map) return;
    const svg = e.target.closest && e.target.closest("#map svg"), item = e.target.closest && e.target.closest("[data-owner]");
    if (svg) {
      const r = svg.getBoundingClientRect(), columns = +map.dataset.columns, rows = map.dataset.cells.length / 3 / columns;
      const x = Math.floor((e.clientX - r.left) / r.width * columns), y = Math.floor((e.clientY - r.top) / r.height * rows);
      if (x >= 0 && x < columns && y >= 0 && y < rows) point(y * columns + x);
    } else if (document.activeElement !== map && at !== rest) point(rest);
    const owner = item ? item.dataset.owner : "";
    if (owner !== picked) pick(owner);
  });
  document.addEventListener("keydown", (e) => {
    const map = $("map");
    if (document.activeElement !== map || !map || e.altKey || e.ctrlKey || e.metaKey) return;
    const columns = +map.dataset.columns, last = map.dataset.cells.length / 3 - 1;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -last, End: last }[e.key];
    if (!step) return;
    e.preventDefault();
    point(Math.min(last, Math.max(0, Math.max(at, 0) + step)));
  });
  document.addEventListener("focusout", (e) => { if (e.target.id === "map") point(rest); });

  slots();
  open();
})();
