// Turns one element into another in place: focus, scroll, selection, open <details> and typed text survive.
// Rows are matched by id. Elements with data-keep are left alone (charts).

const SKIP_VALUE = new Set(["csrfmiddlewaretoken", "form_key"]);

export function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to.cloneNode(true));
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.hasAttribute("data-keep")) {
    from.dispatchEvent(new CustomEvent("hearth:kept", { detail: to }));
    return;
  }
  if (SKIP_VALUE.has(from.getAttribute("name"))) return;
  syncAttributes(from, to);
  if (from.nodeName === "TEXTAREA" || from === document.activeElement && from.matches("input, select")) return;
  if (from.nodeName === "INPUT") syncField(from, to);
  morphChildren(from, to);
}

function syncAttributes(from, to) {
  for (const { name } of [...from.attributes]) {
    const openByUser = name === "open" && from.nodeName === "DETAILS";
    const own = name === "data-own-class" || name === "aria-selected";
    if (!to.hasAttribute(name) && !openByUser && !own) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
}

function syncField(from, to) {
  const touched = from.value !== from.defaultValue || from.checked !== from.defaultChecked;
  if (touched) return;
  from.value = to.defaultValue;
  from.checked = to.defaultChecked;
}

function morphChildren(from, to) {
  const byId = new Map();
  for (const child of from.children) if (child.id) byId.set(child.id, child);
  let current = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const match = wanted.id ? byId.get(wanted.id) : reusable(current, wanted);
    if (match) {
      if (match !== current) from.insertBefore(match, current);
      else current = current.nextSibling;
      morph(match, wanted);
    } else {
      from.insertBefore(wanted.cloneNode(true), current);
    }
  }
  while (current) {
    const next = current.nextSibling;
    current.remove();
    current = next;
  }
}

// A node at the same place of the same kind; one with an id belongs to a row that may come later.
function reusable(current, wanted) {
  if (!current || current.nodeType !== wanted.nodeType || current.nodeName !== wanted.nodeName) return null;
  return current.id ? null : current;
}
