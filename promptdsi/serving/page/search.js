// The search box and its results. Answers come as one types; an older answer never covers a newer one.
import {call} from "./api.js";
import {$, count, empty, errorBox, h, loading, number, prose} from "./dom.js";
import {clearFilters} from "./filters.js";
import {resultItem, showOrigins} from "./result.js";
import {index, navigate, onIndex, onState, state} from "./state.js";

const DEBOUNCE_MS = 120;
const PAUSE_MS = 600; // who has not typed for so long reads: time for what takes a second search
const NEW_ENTRY_MS = 2000; // a pause this long in typing makes a new entry for the back button
const FIRST = 10;
const MORE = 50;

const input = $("#query");
let answer = null; // what the page shows: {query, at, where, k, generation, hits, truncated, certain, whys}
let running = null; // the controller of the request under way
let timer = null;
let pause = null;
let lastTyped = 0;

export function setUpSearch() {
  input.value = state.q;
  input.addEventListener("input", () => {
    const paused = performance.now() - lastTyped > NEW_ENTRY_MS;
    lastTyped = performance.now();
    navigate({q: input.value, tab: "search"}, {replace: !paused});
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && input.value) {
      event.preventDefault();
      navigate({q: ""});
    } else if (event.key === "ArrowDown" && $(".hit .title")) {
      event.preventDefault();
      $(".hit .title").focus();
    }
  });
  $("#search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    navigate({tab: "search"}, {replace: true});
    search();
  });
  addEventListener("keydown", (event) => {
    const writing = event.target.closest?.("input, textarea, dialog");
    if (event.key !== "/" || writing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    input.select();
  });
  $("#results").addEventListener("keydown", moveBetweenHits);
  $("#results").addEventListener("keydown", closeMenu);
  $("#results").addEventListener("focusout", closeMenu);
  onState((before) => {
    if (input.value !== state.q) input.value = state.q;
    if (before.q === state.q && before.at === state.at && String(before.where) === String(state.where)) return;
    clearTimeout(timer);
    timer = setTimeout(search, DEBOUNCE_MS);
  });
  onIndex((before) => {
    input.maxLength = index.limits.query;
    if (!answer) showStart();
    else if (before === null) showHits(); // only now is it known whether one may delete
    // Results must not move under the reader's eyes; unseen ones may.
    else if (before && before.generation !== index.generation && state.tab !== "search") search();
    else summarise();
  });
  if (state.q) search();
}

async function search(k = FIRST) {
  clearTimeout(timer);
  running?.abort();
  const query = state.q.trim();
  const {at, where} = state;
  const request = running = new AbortController();
  const isLatest = () => request === running;
  if (!query) {
    show(null);
    return;
  }
  document.body.classList.add("searching");
  try {
    const {generation, results} = await call("POST", "api/search", {json: {query, k, explain: false, where, at}, signal: request.signal});
    if (isLatest()) show({query, at, where, k, generation, ...results[0], whys: null});
  } catch (error) {
    if (isLatest() && error.name !== "AbortError") showError(error);
  } finally {
    if (isLatest()) document.body.classList.remove("searching");
  }
}

function show(next) {
  answer = next;
  document.body.classList.remove("searching");
  if (answer) showHits();
  else showStart();
}

function showError(error) {
  show(null);
  $("#results").replaceChildren(errorBox(error, () => search()));
}

/** Without a query: what is here, and what one can do. */
function showStart() {
  clearTimeout(pause);
  $("#summary").textContent = "";
  if (state.q.trim()) return; // an answer or an error is on its way
  $("#results").replaceChildren(index ? (index.documents > 0 ? contents() : noDocuments()) : loading("Contacting the server …"));
}

function contents() {
  const {documents, corpora, words, writable} = index;
  return empty(`Search ${count(documents, "document")}`,
    h("p", {class: "soft"}, "Ask in your own words: documents are found by what they mean",
      words ? ", and by exact words such as names and numbers." : "."),
    h("p", {class: "soft"}, tabLink("versions", "Versions"), " shows what changed and when",
      writable && ["; ", tabLink("add", "Add documents"), " takes new files"], "."),
    h("table", {class: "corpora"},
      h("caption", {}, corpora.length === 1 ? "One collection: documents that were added together"
        : `${number(corpora.length)} collections: documents that were added together`),
      h("thead", {}, h("tr", {}, ["Collection", "Documents", "Since version"].map((name) => h("th", {scope: "col"}, name)))),
      h("tbody", {}, corpora.map((corpus) => h("tr", {},
        h("th", {scope: "row"}, corpus.name, corpus.fast && h("span", {class: "soft"}, " added quickly, not trained yet")),
        h("td", {}, number(corpus.documents)), h("td", {}, corpus.since))))));
}

const noDocuments = () => empty("There are no documents here yet.",
  h("p", {class: "soft"}, index.writable ? [tabLink("add", "Add documents"), " to search them."] : prose("`promptdsi add INDEX FOLDER` adds some.")));

const tabLink = (tab, text) => h("button", {type: "button", class: "link", onclick: () => navigate({tab})}, text);

function showHits() {
  clearTimeout(pause);
  summarise();
  const {hits, k} = answer;
  if (hits.length === 0) {
    $("#results").replaceChildren(answer.where.length > 0
      ? empty("No document fits these filters.", h("button", {type: "button", onclick: clearFilters}, "Search all documents"))
      : empty("No results.", h("p", {class: "soft"}, "This version has no documents.")));
    return;
  }
  const place = focusedHit();
  $("#results").replaceChildren(
    h("ol", {class: "hits"}, hits.map((hit) => resultItem(hit, answer, () => search(answer?.k)))),
    h("button", {type: "button", class: "more", hidden: hits.length < FIRST || k > FIRST, onclick: showMore}, "Show more"));
  if (place >= 0) document.querySelectorAll(".hit .title")[Math.min(place, hits.length - 1)].focus();
  pause = setTimeout(showOrigins, PAUSE_MS, answer);
}

/** Which result has focus: a late answer must not take focus from a reader who is in the list already. -1 when none has. */
const focusedHit = () => [...document.querySelectorAll(".hit")].indexOf(document.activeElement.closest(".hit"));

async function showMore() {
  await search(MORE);
  document.querySelectorAll(".hit .title")[FIRST]?.focus();
}

/** How many results, whether there is a newer version, and whether any result is likely to be right. */
function summarise() {
  const {hits, generation, truncated, certain, at} = answer;
  const parts = [`${count(hits.length, "result")}.`];
  if (truncated) parts.push(" The question is very long; its end was left out.");
  if (!at && index && index.generation !== generation) {
    parts.push(" The documents have changed. ", h("button", {type: "button", class: "link", onclick: () => search()}, "Search again"));
  }
  if (!certain && hits.length > 0) parts.push(" ", h("strong", {class: "uncertain"}, "Nothing certain; nearest:")); // the last: it introduces the list
  const text = parts.map((part) => part.textContent ?? part).join("");
  if ($("#summary").textContent !== text) $("#summary").replaceChildren(...parts); // or screen readers hear it again
}

function moveBetweenHits(event) {
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  const titles = [...document.querySelectorAll(".hit .title")];
  const position = titles.findIndex((title) => title.closest(".hit").contains(event.target));
  if (position < 0) return;
  event.preventDefault();
  (titles[position + step] ?? (step < 0 ? input : titles[position])).focus();
}

/** A menu closes by Escape, and when focus leaves it. */
function closeMenu(event) {
  const menu = event.target.closest(".menu");
  if (!menu?.open || (event.type === "keydown" ? event.key !== "Escape" : menu.contains(event.relatedTarget))) return;
  menu.open = false;
  if (event.type === "keydown") $("summary", menu).focus();
}
