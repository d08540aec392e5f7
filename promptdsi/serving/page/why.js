// The panel under a hit that says why it is there: prompt, rank without it, nearest query, newer documents, neighbours.
import {count, fact, figure, h} from "./dom.js";
import {documentLink, documentList} from "./document.js";
import {index} from "./state.js";

export function whyFacts(hit, why) {
  return h("dl", {class: "facts"},
    fact("Prompt", why.prompt === null ? noPromptText() : promptText(why)),
    fact("Without it", why.prompt !== null && withoutText(hit, why)),
    fact("Nearest query", why.query && [h("q", {}, why.query), nearness(why.query_similarity)]),
    fact("Newer before it", why.newer.length > 0 ? documentList(why.newer, why.newer_count)
      : "No document that arrived later stands before this one."),
    fact("Neighbours", why.neighbors.length > 0 && h("ol", {class: "neighbours"},
      why.neighbors.map((neighbour) => h("li", {},
        documentLink(neighbour), h("span", {class: "soft"}, neighbour.corpus),
        h("span", {class: "figure soft"}, h("span", {class: "unseen"}, "similarity "), figure(neighbour.similarity)))))));
}

const nearness = (value) => value != null && h("span", {class: "figure soft"}, `similarity ${figure(value)}`);

/** An index may have prompts that this query goes without: before the first corpus was added there were none to take. */
function noPromptText() {
  const reason = index?.prompts === "none" ? "This index uses no prompts" : "None was taken";
  return `${reason}: the query is compared with the rows as it is.`;
}

function promptText({prompt, topic, similarity}) {
  return [`Number ${prompt}, whose key is nearest to the query`, nearness(similarity),
    topic.length > 0 && h("ul", {class: "words", "aria-label": "Words of its topic"},
      topic.map((word) => h("li", {}, word)))];
}

function withoutText(hit, {rank_without: rank, score_without: score}) {
  const change = rank === hit.rank ? "the same"
    : `so the prompt ${rank > hit.rank ? "lifts" : "lowers"} it by ${count(Math.abs(rank - hit.rank), "place")}`;
  return [`Rank ${rank}, ${change}`, h("span", {class: "figure soft"}, `score ${figure(score)}`)];
}
