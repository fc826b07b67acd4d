// Keeps relative times true between refreshes. The words equal controlplane.web.formats.age_text.

const SPANS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function age(at, now = Date.now()) {
  const gap = (now - at) / 1000;
  const size = Math.abs(gap);
  if (size < 1) return "now";
  const [unit, span] = SPANS.find(([, seconds]) => size >= seconds);
  const words = `${Math.floor(size / span)} ${unit}`;
  return gap > 0 ? `${words} ago` : `in ${words}`;
}

export function tick(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const words = age(Date.parse(element.dateTime));
    if (element.textContent !== words) element.textContent = words;
  }
}

setInterval(tick, 1000);
