// Keyboard: every key has a visible control too; nothing destructive has a key.

import { refresh, togglePause } from "./live.js";

const dialog = document.getElementById("keys");
let going = 0;

function selectableRows() {
  return [...document.querySelectorAll("tbody tr[data-url]")].filter((row) => row.offsetParent);
}

function select(step) {
  const rows = selectableRows();
  if (!rows.length) return;
  const current = rows.findIndex((row) => row.hasAttribute("data-own-class"));
  const next = Math.max(0, Math.min(rows.length - 1, current < 0 ? 0 : current + step));
  rows[current]?.classList.remove("selected");
  rows[current]?.removeAttribute("data-own-class");
  rows[next].setAttribute("data-own-class", "selected");
  rows[next].classList.add("selected");
  rows[next].querySelector("a")?.focus({ preventScroll: true });
  rows[next].scrollIntoView({ block: "nearest" });
}

function open() {
  const row = document.querySelector("tbody tr[data-own-class]");
  if (row?.dataset.url) location.assign(row.dataset.url);
}

function go(key) {
  const place = document.querySelector(`a[data-key="${CSS.escape(key)}"]`);
  if (place) location.assign(place.href);
}

function escape() {
  if (dialog?.open) dialog.close();
  else if (document.activeElement !== document.body) document.activeElement.blur();
  else document.querySelector(".crumbs li:last-child a")?.click();
}

const KEYS = {
  "/": () => document.querySelector("[data-search]")?.focus(),
  "?": () => dialog?.showModal(),
  j: () => select(1),
  k: () => select(-1),
  r: refresh,
  ".": togglePause,
  Enter: open,
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return escape();
  if (event.target.closest("input, select, textarea, [contenteditable]")) return;
  if (event.key === "Enter" && event.target !== document.body && !event.target.closest("tr[data-own-class]")) return;
  if (Date.now() - going < 1500) {
    going = 0;
    return go(event.key);
  }
  if (event.key === "g") {
    going = Date.now();
    return;
  }
  if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

document.getElementById("show-keys")?.addEventListener("click", () => dialog.showModal());
document.getElementById("hide-keys")?.addEventListener("click", () => dialog.close());
