// Keeps relative times true between refreshes. The words equal controlplane.web.formats.age_text.

const SPANS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function age(at, now = Date.now()) {
  const gap = (now - at) / 1000;
  const size = Math.abs(gap);
  if (size < 1) return "now";
  const first = SPANS.findIndex(([, seconds]) => size >= seconds);
  const [unit, span] = SPANS[first];
  const words = `${Math.floor(size / span)} ${unit}`;
  if (gap > 0) return `${words} ago`;
  // What is to come is said in two units from an hour on: nearly two hours are not one.
  const [less, part] = SPANS[first + 1] ?? ["s", 1];
  const left = span >= 3600 ? Math.floor((size % span) / part) : 0;
  return left ? `in ${words} ${left} ${less}` : `in ${words}`;
}

export function tick(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const words = age(Date.parse(element.dateTime));
    if (element.textContent !== words) element.textContent = words;
  }
}

setInterval(tick, 1000);
