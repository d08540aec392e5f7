// The beginning: header, tabs and the as-of banner; each view is a module of its own.
import {resumeJob, showAdd} from "./add.js";
import {$, count} from "./dom.js";
import {setUpFilters} from "./filters.js";
import {setUpSearch} from "./search.js";
import {addressOf, index, navigate, onIndex, onState, state, watchIndex} from "./state.js";
import {showTimeline} from "./timeline.js";

const VIEWS = {search: () => {}, timeline: showTimeline, add: showAdd};
const tabs = [...document.querySelectorAll("[data-tab]")];

function showTab(entered) {
  for (const tab of tabs) {
    const selected = tab.dataset.tab === state.tab;
    tab.href = addressOf({tab: tab.dataset.tab});
    if (selected) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
    $(`#view-${tab.dataset.tab}`).hidden = !selected;
  }
  VIEWS[state.tab](entered);
}

function showBanner() {
  $("#as-of").hidden = state.at === null;
  const now = index ? `; the index is now at ${index.generation}` : "";
  $("#as-of span").textContent = state.at === null ? "" : `Searching as of generation ${state.at}${now}.`;
}

function showHeader() {
  $("#name").textContent = index.name;
  $("#size").textContent = `${count(index.documents, "document")} · generation ${index.generation}`;
  const prompts = index.prompts === "none" ? "" : `, ${index.prompts} prompts`;
  $("#about").textContent =
    `PromptDSI ${index.version} · ${index.method}${prompts} · ${index.backbone}, vectors of ${index.width} · stores ${index.store}`;
}

function showTitle() {
  document.title = [state.q.trim(), index?.name ?? "PromptDSI"].filter(Boolean).join(" – ");
}

for (const tab of tabs) {
  tab.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a link is a link
    event.preventDefault();
    navigate({tab: tab.dataset.tab});
  });
}
$("[data-testid=back-to-now]").addEventListener("click", () => {
  navigate({at: null});
  $("#query").focus(); // the button is hidden now
});

onState((before) => {
  showTab(before.tab !== state.tab);
  showBanner();
  showTitle();
});
onIndex((before) => {
  showHeader();
  showBanner();
  showTitle();
  showTab(before === null);
  if (before === null && index.writable) resumeJob().catch(() => {}); // a server without jobs has none to resume
});

setUpFilters();
setUpSearch();
showTab(true);
showBanner();
watchIndex();
