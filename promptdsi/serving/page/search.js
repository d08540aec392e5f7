// The search box and its hits. Answers come as one types; an older answer never covers a newer one.
import {call} from "./api.js";
import {badge, openDocument} from "./document.js";
import {$, announce, count, empty, errorBox, figure, h, loading, nameOf, probability} from "./dom.js";
import {index, navigate, onIndex, onState, refreshIndex, state} from "./state.js";
import {toast} from "./toast.js";
import {whyFacts} from "./why.js";

const DEBOUNCE_MS = 120;
const NEW_ENTRY_MS = 2000; // a pause this long in typing makes a new entry for the back button
const FIRST = 10;
const MORE = 50;
const STOP_WORDS = new Set(("a an and are as at be but by can did do does for from had has have how i if in into is it its me my " +
  "not of on or our so that the their them they this to was we were what when where which who why will with you your").split(" "));
const WORD = /[\p{L}\p{N}]+/gu;

const input = $("#query");
let answer = null; // what the page shows: {query, at, where, k, generation, hits, truncated, certain, whys}
let running = null; // the controller of the request under way
let timer = null;
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
    // Hits must not move under the reader's eyes; unseen ones may.
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

/** Without a query: what the index contains. */
function showStart() {
  $("#summary").textContent = "";
  if (state.q.trim()) return; // an answer or an error is on its way
  $("#results").replaceChildren(index ? empty(`${count(index.documents, "document")} can be found here.`,
    h("p", {class: "soft"}, "Each has a learned vector, called a row; a long one has a row for each of its passages. ",
      index.words && "The words of a query count beside it. ",
      `They were added in ${count(index.corpora.length, "group")}, each called a corpus.`),
    h("table", {class: "corpora"},
      h("thead", {}, h("tr", {}, ["Corpus", "Documents", "Added in generation"].map((name) => h("th", {scope: "col"}, name)))),
      h("tbody", {}, index.corpora.map((corpus) => h("tr", {},
        h("th", {scope: "row"}, corpus.name, corpus.fast && h("span", {class: "soft"}, " not trained yet")),
        h("td", {}, corpus.documents), h("td", {}, corpus.since))))))
    : loading("Contacting the server …"));
}

function showHits() {
  summarise();
  const {hits, k} = answer;
  if (hits.length === 0) {
    $("#results").replaceChildren(empty("No results.",
      h("p", {class: "soft"}, answer.where.length > 0 ? "No document meets these filters."
        : "No document can be found in this generation of the index.")));
    return;
  }
  const place = focusedHit();
  $("#results").replaceChildren(
    h("ol", {class: "hits"}, hits.map(hitItem)),
    h("button", {type: "button", class: "more", hidden: hits.length < FIRST || k > FIRST, onclick: showMore}, "Show more"));
  if (place >= 0) document.querySelectorAll(".hit .title")[Math.min(place, hits.length - 1)].focus();
}

/** Which hit has focus: a late answer must not take focus from a reader who is in the list already. -1 when none has. */
const focusedHit = () => [...document.querySelectorAll(".hit")].indexOf(document.activeElement.closest(".hit"));

async function showMore() {
  await search(MORE);
  document.querySelectorAll(".hit .title")[FIRST]?.focus();
}

/** How many hits, of which generation, whether the index has moved on since, and whether any hit is likely to be right. */
function summarise() {
  const {hits, generation, truncated, certain, at} = answer;
  const parts = [`${count(hits.length, "hit")}, generation ${generation}.`];
  if (truncated) parts.push(" The query is longer than the model reads; its end was left out.");
  if (!at && index && index.generation !== generation) {
    parts.push(` The index is now at generation ${index.generation}. `,
      h("button", {type: "button", class: "link", onclick: () => search()}, "Search again"));
  }
  if (!certain) parts.push(" ", h("strong", {class: "uncertain"}, "Nothing certain; nearest:")); // the last: it introduces the list
  const text = parts.map((part) => part.textContent ?? part).join("");
  if ($("#summary").textContent !== text) $("#summary").replaceChildren(...parts); // or screen readers hear it again
}

/** How likely the hit is right, as a bar from 0 to 100 %; an index without calibration has only scores, which have no such scale. */
function trust({confidence, score}) {
  if (confidence === null) return h("span", {class: "figure"}, h("span", {class: "unseen"}, "score "), figure(score));
  const bar = h("span", {class: "bar", "aria-hidden": "true"}, h("span"));
  bar.firstChild.style.width = `${100 * confidence}%`;
  return [bar, h("span", {class: "figure"}, h("span", {class: "unseen"}, "confidence "), probability(confidence))];
}

function hitItem(hit) {
  const panel = h("div", {class: "why-panel", id: `why-${hit.rank}`, role: "region", hidden: true,
    "aria-label": `Why ${nameOf(hit)}`, "data-testid": "why-panel"});
  const item = h("li", {class: "hit", "data-testid": "hit"},
    h("span", {class: "rank", "aria-hidden": "true"}, hit.rank),
    h("div", {class: "body"},
      h("h3", {}, h("button", {type: "button", class: "title", onclick: () => openDocument(hit.docid, hit)}, nameOf(hit))),
      h("p", {class: "meta"}, hit.title && h("span", {class: "docid"}, hit.docid), badge(hit)),
      (hit.page || hit.heading) && h("p", {class: "soft place"}, [hit.page && `page ${hit.page}`, hit.heading].filter(Boolean).join(", ")),
      hit.snippet && h("p", {class: "snippet"}, marked(hit.snippet, answer.query))),
    h("div", {class: "score"}, trust(hit)),
    h("div", {class: "actions"},
      h("button", {type: "button", "aria-expanded": "false", "aria-controls": panel.id, "data-testid": "why",
        "aria-label": `Why ${nameOf(hit)}?`, onclick: (event) => toggleWhy(hit, event.currentTarget, panel)}, "Why?"),
      index?.writable && !answer.at && h("button", {type: "button", "data-testid": "right",
        "aria-label": `${nameOf(hit)} was right`, onclick: (event) => teach(hit, event.currentTarget)}, "This was right"),
      // Deleting acts on the present; in the past it would do something else than it seems to.
      index?.writable && !answer.at && h("button", {type: "button", class: "danger", "data-testid": "delete",
        "aria-label": `Delete ${nameOf(hit)}`, onclick: () => deleteHit(hit, item)}, "Delete")),
    panel);
  return item;
}

/** Text with the query's words in <mark>; words are compared, never built into markup or a pattern. */
function marked(text, query) {
  const words = new Set((query.toLowerCase().match(WORD) ?? []).filter((word) => !STOP_WORDS.has(word)));
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(WORD)) {
    if (!words.has(match[0].toLowerCase())) continue;
    parts.push(text.slice(end, match.index), h("mark", {}, match[0]));
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)];
}

function toggleWhy(hit, button, panel) {
  panel.hidden = !panel.hidden;
  button.setAttribute("aria-expanded", !panel.hidden);
  if (!panel.hasChildNodes()) fillWhy(hit, panel);
}

async function fillWhy(hit, panel) {
  panel.replaceChildren(loading("Loading the explanation …"));
  try {
    const why = (await whys(answer)).get(hit.docid);
    panel.replaceChildren(why ? whyFacts(hit, why) : h("p", {class: "soft"}, "The index has changed since; search again."));
    announce("The explanation is shown.");
  } catch (error) {
    panel.replaceChildren(errorBox(error, () => fillWhy(hit, panel)));
  }
}

/** One request explains all hits of an answer, in the generation that gave them. */
function whys(of) {
  of.whys ??= call("POST", "api/search", {json: {query: of.query, k: of.k, explain: true, where: of.where, at: of.generation}})
    .then(({results}) => new Map(results[0].hits.map((hit) => [hit.docid, hit.why])))
    .catch((error) => {
      of.whys = null; // so that trying again asks again
      throw error;
    });
  return of.whys;
}

/** The document learns the query of this answer; undone by going back a generation. */
async function teach(hit, button) {
  const {query, k} = answer;
  button.disabled = true;
  try {
    const {rank_before: before, rank_after: after} = await call("POST", "api/feedback", {json: {query, docid: hit.docid}});
    toast(`${nameOf(hit)} has learned “${query}”: rank ${before} before, ${after} now.`);
    await Promise.all([refreshIndex(), search(k)]);
  } catch (error) {
    button.disabled = false;
    toast(errorBox(error));
  }
}

async function deleteHit(hit, item) {
  item.classList.add("leaving");
  try {
    await call("DELETE", `api/documents/${encodeURIComponent(hit.docid)}`);
    toast(`Deleted ${nameOf(hit)}.`, {label: "Undo", testid: "undo", run: () => restore(hit)}).focus();
    await Promise.all([refreshIndex(), search(answer.k)]);
  } catch (error) {
    item.classList.remove("leaving");
    toast(errorBox(error));
  }
}

async function restore(hit) {
  try {
    await call("POST", "api/undelete", {json: {docids: [hit.docid]}});
    announce(`${nameOf(hit)} is back.`);
    await Promise.all([refreshIndex(), search(answer?.k)]);
  } catch (error) {
    toast(errorBox(error));
  }
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
