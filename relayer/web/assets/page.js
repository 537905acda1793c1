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
      for (const { name } of [...was.attributes]) if (!node.hasAttribute(name)) was.removeAttribute(name);
      for (const { name, value } of [...node.attributes]) if (was.getAttribute(name) !== value) was.setAttribute(name, value);
      morph(was, node);
    });
    a.slice(b.length).forEach((node) => node.remove());
  }

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

  open();
})();
