// Why a result is where it is, in plain words: how much came from meaning and from which exact words, and what is similar.
import {count, fact, h, number} from "./dom.js";
import {documentLink, documentList} from "./document.js";

/** The shares of the score that meaning and words give, and each word's; a negative part gives nothing. */
function shares({score}, {learned, words, rank_by_words: rank}) {
  const total = Math.max(0, learned) + Math.max(0, score - learned) || 1;
  const byWords = rank === null ? 0 : Math.max(0, score - learned) / total;
  return {meaning: 1 - byWords, byWords, each: words.map(([word, weight]) => [word, Math.max(0, weight) / total])};
}

const whole = (share) => `${Math.round(100 * share)} %`;
const place = (rank) => (rank === 1 ? "first" : `number ${number(rank)}`);

/** Both shares as a bar with two colors, and in words. */
export function origin(hit, why) {
  const {meaning, byWords} = shares(hit, why);
  const bar = h("span", {class: "split", "aria-hidden": "true"}, h("span"));
  bar.firstChild.style.width = `${100 * meaning}%`;
  return [bar, h("span", {class: "key"}, h("span", {class: "by-meaning"}, `meaning ${whole(meaning)}`), " ",
    h("span", {class: "by-words"}, `words ${whole(byWords)}`))];
}

export function whyFacts(hit, why) {
  const {meaning, byWords, each} = shares(hit, why);
  const hasWords = why.rank_by_words !== null;
  return h("dl", {class: "facts"},
    fact("Meaning", hasWords ? `${whole(meaning)} of the score. ` : "All of the score: this index does not compare words. ",
      `By meaning alone it would be ${place(why.rank_by_rows)}.`),
    fact("Exact words", hasWords && (each.length > 0 ? [`${whole(byWords)} of the score. By words alone it would be ${place(why.rank_by_words)}.`,
      h("ul", {class: "words", "aria-label": "Words in common"},
        each.map(([word, share]) => h("li", {}, h("mark", {}, word), " ", h("span", {class: "figure soft"}, whole(share)))))]
      : "None of your words is in this passage.")),
    fact("Prompt", why.prompt !== null && promptText(hit, why)),
    fact("Learned from", why.query && ["the question ", h("q", {}, why.query)]),
    fact("Newer above it", why.newer.length > 0 && documentList(why.newer, why.newer_count)),
    fact("Similar documents", why.neighbors.length > 0 && h("ol", {class: "neighbors"},
      why.neighbors.map((neighbor) => h("li", {}, documentLink(neighbor), h("span", {class: "soft"}, neighbor.corpus))))));
}

/** Which learned prompt the query was read with, what that prompt is about, and whether it helped. */
function promptText(hit, {prompt, topic, rank_without: rank}) {
  const change = rank === hit.rank ? "the same"
    : `so the prompt ${rank > hit.rank ? "lifts" : "lowers"} it by ${count(Math.abs(rank - hit.rank), "place")}`;
  return [`Your words were read with prompt ${prompt}. By meaning without it ${place(rank)}, ${change}.`,
    topic.length > 0 && h("ul", {class: "words", "aria-label": "Words of its topic"}, topic.map((word) => h("li", {}, word)))];
}
