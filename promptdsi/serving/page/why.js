// The panel under a hit that says why it is there: prompt, rank without it, most similar training query, newer and similar documents.
import {count, fact, figure, h} from "./dom.js";
import {documentLink, documentList} from "./document.js";
import {index} from "./state.js";

export function whyFacts(hit, why) {
  return h("dl", {class: "facts"},
    fact("Prompt", why.prompt === null ? noPromptText() : promptText(why)),
    fact("Without the prompt", why.prompt !== null && withoutText(hit, why)),
    fact("Training query", why.query && [h("q", {}, why.query), nearness(why.query_similarity)]),
    fact("Newer above it", why.newer.length > 0 ? documentList(why.newer, why.newer_count)
      : "No document that was added later ranks above this one."),
    fact("Similar documents", why.neighbors.length > 0 && h("ol", {class: "neighbors"},
      why.neighbors.map((neighbor) => h("li", {},
        documentLink(neighbor), h("span", {class: "soft"}, neighbor.corpus),
        h("span", {class: "figure soft"}, h("span", {class: "unseen"}, "similarity "), figure(neighbor.similarity)))))));
}

const nearness = (value) => value != null && h("span", {class: "figure soft"}, `similarity ${figure(value)}`);

/** An index may have prompts that this query goes without: before the first corpus was added there were none. */
function noPromptText() {
  const reason = index?.prompts === "none" ? "This index uses no prompts" : "No prompt was selected";
  return `${reason}: the query is compared with the documents directly.`;
}

function promptText({prompt, topic, similarity}) {
  return [`Number ${prompt}, whose key is most similar to the query`, nearness(similarity),
    topic.length > 0 && h("ul", {class: "words", "aria-label": "Words of its topic"},
      topic.map((word) => h("li", {}, word)))];
}

function withoutText(hit, {rank_without: rank, score_without: score}) {
  const change = rank === hit.rank ? "the same"
    : `so the prompt ${rank > hit.rank ? "lifts" : "lowers"} it by ${count(Math.abs(rank - hit.rank), "place")}`;
  return [`Rank ${rank}, ${change}`, h("span", {class: "figure soft"}, `score ${figure(score)}`)];
}
