// The page asks for itself again: every 3 s while someone is active, 15 s while visible, 60 s when idle, never hidden.
// 304 costs nothing; the header says how old the picture is, and whether it is live, paused or stale.

import { morph } from "./morph.js";
import { age, tick } from "./clock.js";

const ACTIVE = 3000, VISIBLE = 15000, IDLE = 60000;
const ACTIVE_FOR = 30000, IDLE_AFTER = 300000;
const stamp = document.getElementById("stamp");
const announcer = document.getElementById("announcer");

let etag = "";
let asOf = Date.parse(stamp?.dataset.asOf ?? "");
let lastActivity = Date.now();
let timer = 0;
let failures = 0;
let running = null;
let pointerRow = false;

const page = () => document.getElementById("page");
const isLive = () => page()?.dataset.live === "on";
export const paused = () => sessionStorage.getItem("paused") === "yes";

function delay() {
  const quiet = Date.now() - lastActivity;
  const base = quiet < ACTIVE_FOR ? ACTIVE : quiet < IDLE_AFTER ? VISIBLE : IDLE;
  return Math.min(base * 2 ** failures, IDLE);
}

function schedule() {
  clearTimeout(timer);
  if (isLive() && !document.hidden && !paused()) timer = setTimeout(refresh, delay());
  showStamp();
}

export async function refresh() {
  if (!isLive()) return;
  running?.abort();
  running = new AbortController();
  const address = location.href;
  try {
    const headers = { "X-Hearth-Live": "1" };
    if (etag) headers["If-None-Match"] = etag;
    const answer = await fetch(address, { headers, signal: AbortSignal.any([running.signal, AbortSignal.timeout(20000)]) });
    if (answer.redirected && new URL(answer.url).pathname.startsWith("/login")) location.reload();
    if (address !== location.href) return;
    if (answer.status !== 304 && !answer.ok) throw new Error(String(answer.status));
    if (answer.ok) apply(await answer.text());
    etag = answer.headers.get("ETag") ?? etag;
    asOf = Date.parse(answer.headers.get("X-Hearth-As-Of")) || asOf;
    failures = 0;
  } catch (error) {
    if (error.name === "AbortError") return;
    failures = Math.min(failures + 1, 5);
  }
  schedule();
}

export function apply(text) {
  const incoming = new DOMParser().parseFromString(text, "text/html");
  const next = incoming.getElementById("page");
  if (!next) return;
  const before = page().dataset.summary;
  keepOrder(next);
  morph(page(), next);
  if (incoming.title) document.title = incoming.title;
  setIcon(page().dataset.worst);
  if (before !== page().dataset.summary) announcer.textContent = page().dataset.summary;
  document.dispatchEvent(new CustomEvent("hearth:refreshed"));
  tick();
}

// Rows do not jump away under the pointer: while it is over a table, its known rows keep their order.
function keepOrder(next) {
  if (!pointerRow) return;
  for (const body of page().querySelectorAll("tbody[id]")) {
    const incoming = next.querySelector(`#${CSS.escape(body.id)}`);
    if (!incoming || !body.matches(":hover")) continue;
    const rank = new Map([...body.rows].map((row, index) => [row.id, index]));
    const rows = [...incoming.rows].sort((a, b) => (rank.get(a.id) ?? 1e9) - (rank.get(b.id) ?? 1e9));
    incoming.append(...rows);
  }
}

function setIcon(worst) {
  const icon = document.querySelector("link[rel=icon]");
  const wanted = icon.href.replace(/favicon-\w+\.svg/, `favicon-${worst}.svg`);
  if (icon.href !== wanted) icon.href = wanted;
}

function showStamp() {
  if (!stamp || !page()) return;
  const stale = page().dataset.stale || (failures ? "the server does not answer" : "");
  const state = !isLive() ? "still" : stale ? "stale" : paused() ? "paused" : "live";
  stamp.dataset.state = state;
  stamp.title = stale ? `Stale: ${stale}.` : stamp.dataset.help;
  const at = new Date(asOf).toISOString().slice(11, 19);
  stamp.querySelector(".at").textContent = `as of ${at} UTC`;
  stamp.querySelector(".ago").textContent = `· ${age(asOf)}`;
  stamp.querySelector(".mode").textContent = { live: "· live", paused: "· paused", stale: "· stale", still: "" }[state];
  const button = document.getElementById("pause");
  button.hidden = !isLive();
  button.setAttribute("aria-pressed", String(paused()));
  button.textContent = paused() ? "Resume" : "Pause";
}

export function togglePause() {
  sessionStorage.setItem("paused", paused() ? "no" : "yes");
  if (paused()) schedule();
  else refresh();
}

function wake() {
  const slept = Date.now() - lastActivity > ACTIVE_FOR;
  lastActivity = Date.now();
  if (slept) schedule();
}

if (stamp) {
  for (const event of ["pointerdown", "keydown", "scroll", "pointermove"]) addEventListener(event, wake, { passive: true });
  addEventListener("pointerover", (event) => { pointerRow = Boolean(event.target.closest?.("tbody tr")); }, { passive: true });
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
  document.getElementById("pause").addEventListener("click", togglePause);
  document.addEventListener("htmx:afterSettle", () => { etag = ""; schedule(); });
  addEventListener("popstate", () => { etag = ""; });
  setInterval(showStamp, 1000);
  schedule();
}
