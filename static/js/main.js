// One entry for every page; charts.js is added by the pages that have charts.
import "./clock.js";
import "./live.js";
import "./forms.js";
import "./keys.js";
import "./swap.js";

document.documentElement.dataset.ready = "";
