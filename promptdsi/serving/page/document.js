// One whole document in a dialog; opened from a hit, a neighbor or a point of the map.
import {call} from "./api.js";
import {$, errorBox, fact, h, loading, nameOf, number} from "./dom.js";
import {index, state} from "./state.js";

const LISTED = 10;
let latest = 0; // a slow answer must not replace a document that was opened after it

export async function openDocument(docid) {
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
        stored.text || h("p", {class: "soft"}, index?.store === "text"
          ? "This document has no text." : "This index keeps no text of its documents.")),
      metadata(stored.metadata));
  } catch (error) {
    if (request !== latest) return;
    fill(docid, errorBox(error, () => openDocument(docid)));
  }
  $("button", dialog).focus(); // what had focus was replaced
}

/** The corpus a document came with, and since which generation it is there. */
export const badge = ({corpus, since}) =>
  h("span", {class: "badge", title: `Added with the corpus ${corpus} in generation ${since}`}, h("b", {}, corpus), ` generation ${since}`);

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
