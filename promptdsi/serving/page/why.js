// The panel under a hit that says why it is there: what its row and its words add, prompt, rank without it, most similar training query,
// newer and similar documents.
import {count, fact, figure, h, number} from "./dom.js";
import {documentLink, documentList} from "./document.js";
import {index} from "./state.js";

export function whyFacts(hit, why) {
  return h("dl", {class: "facts"},
    fact("Row", `Adds ${figure(why.learned)} to the score of ${figure(hit.score)}; by rows alone rank ${number(why.rank_by_rows)}`),
    fact("Words", why.rank_by_words !== null && wordsText(hit, why)),
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

/** The words that query and passage share, each with what it adds. */
function wordsText(hit, {learned, words, rank_by_words: rank}) {
  if (words.length === 0) return `None of the query's words is in it; by words alone rank ${number(rank)}`;
  return [`Add ${figure(hit.score - learned)}; by words alone rank ${number(rank)}`,
    h("ul", {class: "words", "aria-label": "Words in common"},
      words.map(([word, weight]) => h("li", {}, word, " ", h("span", {class: "figure soft"}, figure(weight)))))];
}

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
