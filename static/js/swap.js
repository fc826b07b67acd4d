// htmx swaps through the same morph as the live refresh: hx-swap="morph".
import { apply } from "./live.js";

htmx.defineExtension("morph", {
  isInlineSwap: (style) => style === "morph",
  handleSwap: (style, target, fragment) => {
    if (style !== "morph") return false;
    const holder = document.createElement("div");
    holder.append(fragment);
    apply(holder.innerHTML);
    return [target];
  },
});
