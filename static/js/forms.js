// Small comforts of forms: copying, confirming by name, one click one submit, filters that apply by themselves, theme.

addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-from]");
  if (!button) return;
  const text = button.dataset.copy || document.getElementById(button.dataset.copyFrom)?.textContent || "";
  const label = button.querySelector(".label") ?? button;
  const before = label.textContent;
  try {
    await navigator.clipboard.writeText(text.trim());
    label.textContent = "Copied";
  } catch {
    label.textContent = "Press Ctrl+C";
    const source = document.getElementById(button.dataset.copyFrom);
    if (source) getSelection().selectAllChildren(source);
  }
  setTimeout(() => { label.textContent = before; }, 1600);
});

// The button opens only when the name is typed; the server asks for the same.
addEventListener("input", (event) => {
  const field = event.target.closest("[data-confirm]");
  if (!field) return;
  const button = field.form.querySelector("[type=submit]");
  button.disabled = field.value.trim() !== field.dataset.confirm;
});

addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent) {
    event.preventDefault();
    return;
  }
  if (form.method === "post") form.dataset.sent = "yes";
});
addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});

addEventListener("change", (event) => {
  const form = event.target.closest("form[data-auto]");
  if (form) form.requestSubmit();
});

// Filters leave no empty parameters in the address.
addEventListener("formdata", (event) => {
  if (!event.target.matches("form[data-auto]")) return;
  for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
});

document.getElementById("theme")?.addEventListener("change", (event) => {
  const theme = event.target.value;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("hearth:theme"));
  fetch(event.target.form.action, { method: "POST", body: new FormData(event.target.form), redirect: "manual" });
});
