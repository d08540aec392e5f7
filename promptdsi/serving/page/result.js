// One result: the passage with its words marked, how likely it is right, why it is here, and what one can do with it.
import {call} from "./api.js";
import {undoTo} from "./changes.js";
import {badge, openDocument} from "./document.js";
import {$, announce, errorBox, figure, h, loading, nameOf, probability} from "./dom.js";
import {index, refreshIndex} from "./state.js";
import {toast} from "./toast.js";
import {origin, whyFacts} from "./why.js";

const STOP_WORDS = new Set(("a an and are as at be but by can did do does for from had has have how i if in into is it its me my " +
  "not of on or our so that the their them they this to was we were what when where which who why will with you your").split(" "));
const WORD = /[\p{L}\p{N}]+/gu;

/** `answer` is the search it belongs to, `again` repeats that search. */
export function resultItem(hit, answer, again) {
  const panel = h("div", {class: "why-panel", id: `why-${hit.rank}`, role: "region", hidden: true,
    "aria-label": `Why ${nameOf(hit)}`, "data-testid": "why-panel"});
  const item = h("li", {class: "hit", "data-testid": "hit", "data-docid": hit.docid},
    h("span", {class: "rank", "aria-hidden": "true"}, hit.rank),
    h("div", {class: "body"},
      h("h3", {}, h("button", {type: "button", class: "title", onclick: () => openDocument(hit.docid, hit)}, nameOf(hit))),
      h("p", {class: "meta"}, hit.page && h("span", {class: "place"}, `page ${hit.page}`), hit.heading && hit.heading !== hit.title && h("span", {class: "place"}, hit.heading),
        hit.title && h("span", {class: "docid"}, hit.docid), badge(hit)),
      hit.snippet && h("p", {class: "snippet"}, marked(hit.snippet, likelyWords(answer.query)))),
    h("div", {class: "score"}, trust(hit), h("div", {class: "origin", "data-testid": "origin"})),
    h("div", {class: "actions"},
      h("button", {type: "button", "aria-expanded": "false", "aria-controls": panel.id, "data-testid": "why",
        "aria-label": `Why ${nameOf(hit)}?`, onclick: (event) => toggleWhy(hit, answer, event.currentTarget, panel)}, "Why?"),
      // Changes act on the present; in the past they would do something else than they seem to.
      index?.writable && !answer.at && [
        h("button", {type: "button", "data-testid": "right", "aria-label": `${nameOf(hit)} was right`,
          onclick: (event) => teach(hit, answer.query, again, event.currentTarget)}, "This was right"),
        menu(hit, () => remove(hit, item, again))]),
    panel);
  return item;
}

/** How likely the result is right, as a bar from 0 to 100 %; an index without calibration has only scores, which have no such scale. */
function trust({confidence, score}) {
  if (confidence === null) return h("span", {class: "figure"}, h("span", {class: "unseen"}, "score "), figure(score));
  const bar = h("span", {class: "bar", "aria-hidden": "true"}, h("span"));
  bar.firstChild.style.width = `${100 * confidence}%`;
  return [bar, h("span", {class: "figure"}, `${probability(confidence)} likely`)];
}

/** What is seldom wanted, and never by accident: it opens below its button, away from the pointer. */
const menu = (hit, onDelete) => h("details", {class: "menu", name: "menu"},
  h("summary", {"aria-label": `More for ${nameOf(hit)}`, "data-testid": "menu"}, "⋯"),
  h("button", {type: "button", class: "danger", "data-testid": "delete", "aria-label": `Delete ${nameOf(hit)}`, onclick: onDelete}, "Delete"));

const wordsOf = (text) => text.toLowerCase().match(WORD) ?? [];

/** The words that will probably have counted; which did is known with the explanation. */
const likelyWords = (query) => wordsOf(query).filter((word) => !STOP_WORDS.has(word));

/** Text with some words in <mark>; words are compared, never built into markup or a pattern. */
function marked(text, chosen) {
  const words = new Set(chosen);
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(WORD)) {
    if (!words.has(match[0].toLowerCase())) continue;
    parts.push(text.slice(end, match.index), h("mark", {}, match[0]));
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)];
}

function toggleWhy(hit, answer, button, panel) {
  panel.hidden = !panel.hidden;
  button.setAttribute("aria-expanded", !panel.hidden);
  if (!panel.hasChildNodes()) fillWhy(hit, answer, panel);
}

async function fillWhy(hit, answer, panel) {
  panel.replaceChildren(loading("Loading the explanation …"));
  try {
    const why = (await whys(answer)).get(hit.docid);
    panel.replaceChildren(why ? whyFacts(hit, why) : h("p", {class: "soft"}, "The documents have changed since; search again."));
    announce("The explanation is shown.");
  } catch (error) {
    panel.replaceChildren(errorBox(error, () => fillWhy(hit, answer, panel)));
  }
}

/** One request explains all results of an answer, in the version that gave them. */
function whys(answer) {
  answer.whys ??= call("POST", "api/search",
    {json: {query: answer.query, k: answer.k, explain: true, where: answer.where, at: answer.generation}})
    .then(({results}) => new Map(results[0].hits.map((hit) => [hit.docid, hit.why])))
    .catch((error) => {
      answer.whys = null; // so that trying again asks again
      throw error;
    });
  return answer.whys;
}

/** Say beside each result how much of it is meaning and how much words, and mark the words that counted. It takes a second search, so
 * it comes after the results. */
export async function showOrigins(answer) {
  const explained = await whys(answer).catch(() => new Map()); // "Why?" shows the error to who asks
  for (const hit of answer.hits) {
    const item = document.querySelector(`.hit[data-docid="${CSS.escape(hit.docid)}"]`);
    const why = explained.get(hit.docid);
    if (!item || !why || why.rank_by_words === null) continue;
    $(".origin", item).replaceChildren(...origin(hit, why));
    $(".snippet", item)?.replaceChildren(...marked(hit.snippet, why.words.flatMap(([word]) => wordsOf(word))));
  }
}

/** The document learns the query. */
async function teach(hit, query, again, button) {
  button.disabled = true;
  try {
    const {generation, rank_before: before, rank_after: after} = await call("POST", "api/feedback", {json: {query, docid: hit.docid}});
    const change = before === after ? `It stays in place ${after}.` : `It was in place ${before} and is now in place ${after}.`;
    toast(`Learned: ${nameOf(hit)} is right for “${query}”. ${change}`, undoTo(generation - 1, generation, again));
    await Promise.all([refreshIndex(), again()]);
  } catch (error) {
    button.disabled = false;
    toast(errorBox(error));
  }
}

async function remove(hit, item, again) {
  item.classList.add("leaving");
  try {
    await call("DELETE", `api/documents/${encodeURIComponent(hit.docid)}`);
    toast(`Deleted ${nameOf(hit)}.`, {label: "Undo", testid: "undo", run: () => restore(hit, again)}).focus();
    await Promise.all([refreshIndex(), again()]);
  } catch (error) {
    item.classList.remove("leaving");
    toast(errorBox(error));
  }
}

async function restore(hit, again) {
  try {
    await call("POST", "api/undelete", {json: {docids: [hit.docid]}});
    announce(`${nameOf(hit)} is back.`);
    await Promise.all([refreshIndex(), again()]);
  } catch (error) {
    toast(errorBox(error));
  }
}
