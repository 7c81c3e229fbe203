// What pages do by themselves: follow a journal, and keys. Every page works without it.
"use strict";

// An element with data-follow="URL" gets the event limpet:changed when what is behind it changed.
// One that comes and goes with a part of the page takes its source along.
const sources = new Map();

function follow() {
  for (const [element, source] of sources) {
    if (!element.isConnected) {
      source.close();
      sources.delete(element);
    }
  }
  for (const element of document.querySelectorAll("[data-follow]")) {
    if (sources.has(element)) continue;
    const source = new EventSource(element.dataset.follow);
    source.onmessage = () => element.dispatchEvent(new CustomEvent("limpet:changed"));
    source.onopen = () => element.classList.add("live");
    source.onerror = () => element.classList.remove("live");
    sources.set(element, source);
  }
}

// What is unfolded stays so when a part of a page is exchanged, and whoever reads the end of a
// [data-tail] goes on reading its end.
let unfolded = [];
let atEnd = false;

document.addEventListener("htmx:beforeSwap", () => {
  const page = document.documentElement;
  unfolded = [...document.querySelectorAll("details[id][open]")].map((one) => one.id);
  atEnd = page.scrollTop > 0 && page.scrollTop + page.clientHeight >= page.scrollHeight - 40;
});
document.addEventListener("htmx:afterSwap", () => {
  for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
  if (atEnd && document.querySelector("[data-tail]")) {
    document.documentElement.scrollTop = document.documentElement.scrollHeight;
  }
});

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

function move(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (rows.length === 0) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[at === -1 ? (step > 0 ? 0 : rows.length - 1) : at + step];
  if (next) (next.matches("a, button") ? next : next.querySelector("a, button, summary"))?.focus();
}

const KEYS = {
  "/": () => (document.querySelector("main input[type=search]") ?? document.querySelector(".find input"))?.focus(),
  "s": () => document.querySelector(".find input")?.focus(),
  "j": () => move(1),
  "k": () => move(-1),
  "o": () => document.querySelector("a[rel=next]")?.click(),
  "h": () => document.querySelector("a.brand").click(),
  "?": () => document.getElementById("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (document.getElementById("keys").open) return;
  const act = KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

document.addEventListener("DOMContentLoaded", follow);
document.addEventListener("htmx:afterSettle", follow);
window.addEventListener("pagehide", () => {
  for (const source of sources.values()) source.close();
  sources.clear();
});
window.addEventListener("pageshow", follow);
