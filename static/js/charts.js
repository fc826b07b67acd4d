// Draws <figure class="chart"> from the JSON beside it. Colours come from the page's CSS variables, so that both themes
// and the switch between them are one code path. plotly itself loads when the first chart comes near the screen.

let library = null;
const DRAWN = new WeakMap();

function plotly(address) {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => reject(new Error("plotly did not load"));
    document.head.append(script);
  });
  return library;
}

// light-dark() resolves only on a used property: a probe element computes it.
function colour(token, probe) {
  probe.style.color = `var(${token})`;
  return getComputedStyle(probe).color;
}

function themed(spec, figure) {
  const probe = document.createElement("span");
  figure.append(probe);
  const paint = (token) => (typeof token === "string" && token.startsWith("--") ? colour(token, probe) : token);
  const text = paint("--text"), line = paint("--line"), surface = paint("--surface");
  const copy = structuredClone(spec);
  if (copy.data[0]?.meta?.states) unpack(copy.data);
  for (const trace of copy.data) {
    const { tokens = [], text: textToken, line: lineToken } = trace.meta ?? {};
    if (trace.type === "heatmap" && tokens.length) {
      trace.colorscale = tokens.flatMap((token, n) => [[n / tokens.length, paint(token)], [(n + 1) / tokens.length, paint(token)]]);
    } else if (tokens.length && trace.marker) {
      trace.marker.color = tokens.length === 1 ? paint(tokens[0]) : tokens.map(paint);
      if (trace.line) trace.line.color = paint(tokens[0]);
    }
    if (trace.marker?.pattern) trace.marker.pattern.fgcolor = paint("--unknown");
    if (lineToken) trace.marker.line.color = paint(lineToken);
    if (textToken) trace.textfont.color = paint(textToken);
  }
  Object.assign(copy.layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" });
  copy.layout.font = { ...copy.layout.font, color: text, family: getComputedStyle(document.body).fontFamily };
  copy.layout.hoverlabel = { bgcolor: surface, bordercolor: line, font: { color: text } };
  for (const axis of ["xaxis", "yaxis"]) if (copy.layout[axis]) Object.assign(copy.layout[axis], { gridcolor: line, linecolor: line, tickcolor: line });
  probe.remove();
  return copy;
}

// Heads that do not fit side by side stand upright, and the figure grows by what they need then.
const CHARACTER = 7.4;
function turn(layout, width) {
  const [head, row] = layout.meta?.heads ?? [0, 0];
  if ((head + 2) * CHARACTER * layout.xaxis?.tickvals?.length <= width - row * CHARACTER - 16) return;
  if (!head) return;
  layout.xaxis.tickangle = -90;
  layout.height += Math.max(0, head * CHARACTER - 28);
}

const NAMES = { "": "Not wanted here", Kept: "Kept: ready, and no pin wants it" };

// The heatmap comes with what belongs to a row, a column or a state once; each cell's sign, words and page are made here.
function unpack([heat, ...overlays]) {
  const { states, signs, rows, columns, whole, done, loose } = heat.meta;
  const key = (y, x) => `${y},${x}`;
  const bytes = new Map(done.map(([y, x, count]) => [key(y, x), count]));
  const unwanted = new Set(loose.map(([y, x]) => key(y, x)));
  const cells = heat.z.map((line, y) => line.map((index, x) => {
    const state = states[index], [node, nodePage, reason] = rows[y], [version, versionPage, total] = columns[x];
    const there = bytes.get(key(y, x)) ?? (whole.includes(state) ? total : 0);
    const share = state && total ? `<br>${there.toLocaleString("en-US")} of ${total.toLocaleString("en-US")} bytes` : "";
    const sign = state === "Downloading" && total ? `${signs[index]} ${Math.floor(100 * there / total)} %` : signs[index];
    const cold = state && state !== "Ready" && state !== "Kept" && !unwanted.has(key(y, x));
    return { sign, words: `<b>${version}</b> on ${node}<br>${NAMES[state] ?? state}${share}`,
             page: cold ? versionPage + reason : nodePage };
  }));
  heat.text = cells.map((line) => line.map((cell) => cell.sign));
  heat.hovertext = cells.map((line) => line.map((cell) => cell.words));
  heat.customdata = cells.map((line) => line.map((cell) => cell.page));
  for (const over of overlays) over.customdata = over.x.map((x, n) => heat.customdata[Math.round(over.base[n] + 0.45)][x]);
}

async function draw(figure) {
  const plot = figure.querySelector(".plot");
  const source = figure.querySelector("script[type='application/json']");
  const theme = getComputedStyle(document.body).color;
  // Drawing takes the main thread for a moment, in which no click is heard: a refresh without news draws nothing.
  const drawn = theme + source.textContent;
  if (DRAWN.get(figure) === drawn) return;
  const spec = themed(JSON.parse(source.textContent), figure);
  turn(spec.layout, plot.clientWidth);
  const Plotly = await plotly(figure.dataset.plotly);
  DRAWN.set(figure, drawn);
  const drag = { staticPlot: false, displaylogo: false, displayModeBar: false, responsive: true, doubleClick: false };
  await Plotly.react(plot, spec.data, spec.layout, drag);
  if (figure.dataset.bound) return;
  figure.dataset.bound = "yes";
  plot.on("plotly_click", ({ points }) => {
    const target = points[0]?.customdata;
    const address = Array.isArray(target) ? target[0] : target;
    if (typeof address === "string" && address.startsWith("/")) location.assign(address);
  });
  plot.on("plotly_relayout", (change) => zoom(spec.layout.meta?.edges, change["xaxis.range[0]"], change["xaxis.range[1]"]));
}

// Dragging over a stretch of time asks for it by address, so that every panel, a reload and a link show the same.
function zoom(edges, low, high) {
  if (!edges || low === undefined) return;
  const at = (x) => edges[Math.max(0, Math.min(edges.length - 1, x))];
  const query = new URLSearchParams(location.search);
  query.set("since", at(Math.floor(low + 0.5)));
  query.set("until", at(Math.ceil(high + 0.5)));
  for (const place of ["list_after", "list_before"]) query.delete(place);
  location.assign(`${location.pathname}?${query}`);
}

// A refresh leaves the drawn chart in place and hands over the new data.
function bind(figure) {
  const plot = figure.querySelector(".plot");
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    draw(figure);
  }, { rootMargin: "200px" }).observe(plot);
  figure.dataset.chart = "bound";
}

function bindAll() {
  for (const figure of document.querySelectorAll("figure.chart")) {
    if (!figure.dataset.chart) bind(figure);
    else if (library) draw(figure);
  }
}

document.addEventListener("hearth:refreshed", bindAll);
document.addEventListener("htmx:afterSettle", bindAll);
document.addEventListener("hearth:theme", bindAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", bindAll);
bindAll();
