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

  // The page asks for itself again while somebody sees it, and takes over what has changed.
  const every = 2000, within = 10000; // milliseconds
  function state(cls, text) { $("live").className = "live " + cls; $("live-state").textContent = text; }
  async function renew() {
    if (document.hidden) return;
    try {
      const answer = await fetch("./", { signal: AbortSignal.timeout(within) });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const section of fresh.querySelectorAll("main section")) morph($(section.id), section);
      if (!$("result")) document.title = fresh.title;
      $("live-read").textContent = fresh.getElementById("live-read").textContent;
      state("on", "live,");
    } catch {
      state("lost", "connection lost, as of");
    }
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) state("", "paused, as of"); else renew();
  });
  (async function loop() { await renew(); setTimeout(loop, every); })();
})();
