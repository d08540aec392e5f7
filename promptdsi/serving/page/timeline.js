// The generations of the index, oldest first, to travel to; beside them the retention chart.
import {call} from "./api.js";
import {retentionChart} from "./chart.js";
import {$, count, duration, empty, errorBox, h, loading, number, prose, when} from "./dom.js";
import {index, navigate, state} from "./state.js";

let loadedFor = null; // the generation the list was fetched at

/** Called when the tab is opened, and again when the state or the index has changed while it is open. */
export async function showTimeline(entered) {
  markChosen();
  // An evaluation may be recorded without a new generation, so coming back looks again.
  if (!index || (!entered && loadedFor === index.generation)) return;
  if (loadedFor === null) $("#generations").replaceChildren(loading("Reading the generations …"));
  const generation = loadedFor = index.generation;
  await Promise.all([
    fill(generation, $("#generations"), "api/generations", ({current, generations}) => generationList(generations, current)),
    fill(generation, $("#retention"), "api/retention", ({records}) => (records.length > 0 ? retentionChart(records)
      : empty("No evaluation is recorded.", h("p", {class: "soft"}, prose("`promptdsi eval INDEX CORPUS --record` adds one."))))),
  ]);
  markChosen();
}

async function fill(generation, place, path, draw) {
  try {
    const answer = await call("GET", path);
    if (generation === loadedFor) keepingPlace(() => place.replaceChildren(draw(answer))); // a newer call answers for itself
  } catch (error) {
    if (generation !== loadedFor) return;
    loadedFor = null;
    place.replaceChildren(errorBox(error, () => showTimeline(true)));
  }
}

/** A new list must keep focus and scroll position of the old one; scrolled to the end, where the newest is, it stays at the end. */
function keepingPlace(replace) {
  const old = $(".generations");
  const scrolled = old && old.scrollTop + old.clientHeight < old.scrollHeight - 1 ? old.scrollTop : Infinity;
  const focused = old?.contains(document.activeElement) ? document.activeElement.dataset.generation : null;
  replace();
  const list = $(".generations");
  if (!list || list === old) return;
  list.scrollTop = Math.min(scrolled, list.scrollHeight);
  if (focused) $(`[data-generation="${focused}"]`)?.focus({preventScroll: true});
}

const generationList = (generations, current) =>
  h("ol", {class: "generations", "aria-labelledby": "generations-title"}, generations.map((entry, i) => h("li", {},
    h("button", {type: "button", "data-testid": "generation", "data-generation": entry.generation,
      onclick: () => navigate({at: entry.generation === current ? null : entry.generation})},
      h("span", {class: "which"}, h("b", {}, "Generation ", entry.generation), h("span", {class: "kind"}, entry.kind)),
      h("span", {class: "what"}, described(entry, generations[i - 1])),
      h("span", {class: "total"}, count(entry.documents, "document")),
      h("time", {class: "soft", datetime: entry.time}, when(entry.time))))));

function described({kind, corpus, added, updated, removed, corrections, documents, seconds, to}, before) {
  if (kind === "rollback") return `equal to generation ${to}`;
  if (kind === "undelete") return `${number(documents - before.documents)} restored`;
  if (kind === "tune") return "trained";
  if (kind === "teach") return `${count(corrections, "correction")} learned`;
  if (kind === "upgrade") return "words count beside rows";
  const parts = [corpus && h("b", {}, corpus)];
  if (added) parts.push(`${number(added)} added${updated ? ` (${number(updated)} replaced)` : ""}`);
  if (removed) parts.push(`${number(removed)} ${kind === "purge" ? "erased" : "deleted"}`);
  if (seconds && corpus) parts.push(`in ${duration(seconds)}`);
  return parts.filter(Boolean).flatMap((part, i) => (i ? [" ", part] : [part]));
}

function markChosen() {
  const chosen = state.at ?? index?.generation;
  for (const button of document.querySelectorAll("[data-generation]")) {
    if (Number(button.dataset.generation) === chosen) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}
