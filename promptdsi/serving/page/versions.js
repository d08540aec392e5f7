// The versions of the index, newest first: what each changed, to search or to go back to; beside them how well old documents are found.
import {call} from "./api.js";
import {agreed, goBack} from "./changes.js";
import {retentionChart} from "./chart.js";
import {$, count, errorBox, h, loading, when} from "./dom.js";
import {index, navigate, state} from "./state.js";

let loadedFor = null; // the version the list was fetched at

/** Called when the tab is opened, and again when the state or the index has changed while it is open. */
export async function showVersions(entered) {
  markChosen();
  // An evaluation may be recorded without a new version, so coming back looks again.
  if (!index || (!entered && loadedFor === index.generation)) return;
  if (loadedFor === null) $("#versions").replaceChildren(loading("Reading the versions …"));
  const version = loadedFor = index.generation;
  try {
    const [{current, generations}, {records}] = await Promise.all([call("GET", "api/generations"), call("GET", "api/retention")]);
    if (version !== loadedFor) return; // a newer call answers for itself
    keepingFocus(() => $("#versions").replaceChildren(versionList(generations, current)));
    $("#retention").hidden = records.length === 0;
    $("#retention").replaceChildren(...(records.length > 0 ? [retentionChart(records)] : []));
    markChosen();
  } catch (error) {
    if (version !== loadedFor) return;
    loadedFor = null;
    $("#versions").replaceChildren(errorBox(error, () => showVersions(true)));
  }
}

function keepingFocus(replace) {
  const {version, testid} = $("#versions").contains(document.activeElement) ? document.activeElement.dataset : {};
  replace();
  if (version) $(`[data-version="${version}"][data-testid="${testid}"]`)?.focus({preventScroll: true});
}

const versionList = (generations, current) => h("ol", {class: "versions", "aria-labelledby": "versions-title", reversed: true},
  generations.map((entry, i) => versionItem(entry, generations[i - 1], current)).reverse());

function versionItem(entry, before, current) {
  const {generation: version} = entry;
  const button = (testid, label, onclick) =>
    h("button", {type: "button", class: "link", "data-testid": testid, "data-version": version, "aria-label": `${label}: version ${version}`, onclick}, label);
  return h("li", {"data-testid": "version", "data-of": version},
    h("p", {class: "what"}, described(entry, before)),
    h("p", {class: "soft small"}, `Version ${version}${version === current ? " (now)" : ""} · ${count(entry.documents, "document")} · `,
      h("time", {datetime: entry.time}, when(entry.time))),
    version !== current && h("div", {class: "actions"},
      button("search-version", "Search this version", () => navigate({at: version, tab: "search"})),
      index.writable && button("go-back", "Go back to this version", () => confirmGoBack(entry))));
}

async function confirmGoBack({generation, documents}) {
  const detail = `${count(documents, "document")} will be found, as then. What changed since is put aside, not erased; you can undo this.`;
  if (await agreed(`Go back to version ${generation}?`, detail, "Go back")) await goBack(generation, `Everything is as in version ${generation} again.`);
}

/** What made a version, in words. */
function described({generation, kind, corpus, added, updated, removed, corrections, documents, to}, before) {
  const some = (n) => count(n, "document");
  if (kind === "rollback") return `Went back to version ${to}`;
  if (kind === "prune") return "Older versions dropped";
  if (kind === "undelete") return before?.generation === generation - 1 ? `${some(documents - before.documents)} restored` : "Documents restored";
  if (kind === "tune") return "Trained on documents that were added quickly";
  if (kind === "teach") return `${count(corrections, "correction")} learned`;
  if (kind === "upgrade") return "Exact words count from here on";
  const fresh = kind === "sync" ? added : added - updated; // an addition counts what it replaces among what it adds
  const parts = [];
  if (fresh > 0) parts.push(`${some(fresh)} added`);
  if (updated) parts.push(`${some(updated)} replaced`);
  if (removed) parts.push(`${some(removed)} ${kind === "purge" ? "erased" : "deleted"}`);
  return [parts.join(", ") || "No change", corpus && [": ", h("b", {}, corpus)]];
}

function markChosen() {
  const chosen = String(state.at ?? index?.generation);
  for (const item of document.querySelectorAll("[data-of]")) {
    if (item.dataset.of === chosen) item.setAttribute("aria-current", "true");
    else item.removeAttribute("aria-current");
  }
}
