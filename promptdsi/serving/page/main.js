// The beginning: header, tabs and the banner of an earlier version; each view is a module of its own.
import {resumeJob, showAdd} from "./add.js";
import {$, count} from "./dom.js";
import {setUpFilters} from "./filters.js";
import {setUpSearch} from "./search.js";
import {addressOf, index, navigate, onIndex, onState, state, watchIndex} from "./state.js";
import {showVersions} from "./versions.js";

const VIEWS = {search: () => {}, versions: showVersions, add: showAdd};
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
  const now = index ? ` The present one is version ${index.generation}.` : "";
  $("#as-of span").textContent = state.at === null ? "" : `You are searching version ${state.at}.${now}`;
}

function showHeader() {
  $("#name").textContent = index.name;
  $("#size").textContent = `${count(index.documents, "document")} · version ${index.generation}`;
  const prompts = index.prompts === "none" ? "" : ` with ${index.prompts} prompts`;
  const text = index.store === "text" ? "the text of its documents" : index.store === "title" ? "the titles of its documents" : "no text";
  $("#about").textContent = `PromptDSI ${index.version}. Method ${index.method}${prompts}; ` +
    `language model ${index.backbone}, ${index.width} numbers a vector; keeps ${text}.`;
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
