// One whole document in a dialog; opened from a result or a similar document.
import {call} from "./api.js";
import {$, errorBox, fact, h, loading, nameOf, number} from "./dom.js";
import {index, state} from "./state.js";

const LISTED = 10;
let latest = 0; // a slow answer must not replace a document that was opened after it

/** Opens a document. `hit` is the result it was opened from, if any: its passage is marked and scrolled to. */
export async function openDocument(docid, hit = null) {
  const request = ++latest;
  const dialog = $("#document");
  const fill = (title, ...content) => dialog.replaceChildren(
    h("header", {}, h("h2", {id: "document-title"}, title),
      h("button", {type: "button", class: "quiet", "aria-label": "Close", onclick: () => dialog.close()}, "×")),
    ...content);

  fill(docid, loading("Fetching the document …"));
  if (!dialog.open) dialog.showModal();
  try {
    const at = state.at ? `?at=${state.at}` : "";
    const stored = await call("GET", `api/documents/${encodeURIComponent(docid)}${at}`);
    if (request !== latest) return;
    fill(nameOf(stored),
      h("p", {class: "meta"}, h("span", {class: "docid"}, stored.docid), badge(stored)),
      h("div", {class: "text"},
        stored.text ? withPassage(stored, hit) : h("p", {class: "soft"}, index?.store === "text"
          ? "This document has no text." : "The text of documents is not kept here.")),
      metadata(stored.metadata));
  } catch (error) {
    if (request !== latest) return;
    fill(docid, errorBox(error, () => openDocument(docid, hit)));
  }
  $("button", dialog).focus({preventScroll: true}); // what had focus was replaced
  dialog.scrollTop = 0; // of the document that was shown before
  $(".passage", dialog)?.scrollIntoView({block: "start"});
}

/** The text with the passage of the result in <mark>, unless the document was replaced since the search. */
function withPassage(stored, hit) {
  if (!hit?.passage || hit.since !== stored.since) return stored.text;
  const characters = Array.from(stored.text); // the server counts whole characters; strings here count the halves of some
  const part = (start, end) => characters.slice(start, end).join("");
  const [start, end] = hit.passage;
  return [part(0, start), h("mark", {class: "passage", "data-testid": "passage"}, part(start, end)), part(end)];
}

/** The collection a document came with. */
export const badge = ({corpus, since}) =>
  h("span", {class: "badge", title: `Added in version ${since}`}, h("span", {class: "unseen"}, "collection "), corpus);

function metadata(values) {
  const entries = Object.entries(values ?? {});
  return h("dl", {class: "facts"},
    entries.flatMap(([key, value]) => fact(key, typeof value === "string" ? value : JSON.stringify(value))));
}

/** A docid or title that opens its document. */
export const documentLink = (target) =>
  h("button", {type: "button", class: "link", onclick: () => openDocument(target.docid)}, nameOf(target));

/** Several docids, each of which opens its document; of many, the first. */
export function documentList(docids, all) {
  const shown = docids.slice(0, LISTED);
  return h("ul", {class: "neighbors"}, shown.map((docid) => h("li", {}, documentLink({docid}))),
    all > shown.length && h("li", {class: "soft"}, `and ${number(all - shown.length)} more`));
}

$("#document").addEventListener("click", (event) => {
  if (event.target === event.currentTarget) event.currentTarget.close(); // a click beside it, on the backdrop
});
