// What the page shows, kept in the address's query string so that links and the back button work:
// q (the query), at (the number of an earlier version; absent means now), where (filters) and tab. And what is known of the index itself.
import {announce, notice, sentence} from "./dom.js";
import {call} from "./api.js";

const TABS = ["search", "versions", "add"];
const POLL_MS = 5000;

export const state = read();
/** The last answer of /api/index; null until the first has come. */
export let index = null;

const stateListeners = [];
const indexListeners = [];
export const onState = (listener) => stateListeners.push(listener);
export const onIndex = (listener) => indexListeners.push(listener);

function read() {
  const parameters = new URLSearchParams(location.search);
  const at = Number.parseInt(parameters.get("at"), 10);
  return {
    q: parameters.get("q") ?? "",
    at: at > 0 ? at : null,
    where: parameters.getAll("where"),
    tab: TABS.includes(parameters.get("tab")) ? parameters.get("tab") : "search",
  };
}

/** The address of the present state with some changes. */
export function addressOf(changes) {
  const {q, at, where, tab} = {...state, ...changes};
  const query = new URLSearchParams();
  if (q) query.set("q", q);
  if (at) query.set("at", at);
  for (const condition of where) query.append("where", condition);
  if (tab !== "search") query.set("tab", tab);
  return String(query) ? `?${query}` : location.pathname;
}

export function navigate(changes, {replace = false} = {}) {
  const [from, to] = [addressOf({}), addressOf(changes)];
  history[replace || from === to ? "replaceState" : "pushState"](null, "", to);
  adopt({...state, ...changes});
}

function adopt(next) {
  const before = {...state};
  Object.assign(state, next);
  for (const listener of stateListeners) listener(before);
}

addEventListener("popstate", () => adopt(read()));

/** Ask for the present version and tell everybody. */
export async function refreshIndex() {
  const before = index;
  index = await call("GET", "api/index");
  for (const listener of indexListeners) listener(before);
}

/** Other processes may write too: poll, but only while the page is visible. */
export async function watchIndex() {
  if (document.visibilityState === "visible") {
    const before = index?.generation;
    try {
      await refreshIndex();
      if (before && before !== index.generation) announce(`There is a new version: ${index.generation}.`);
    } catch (error) {
      notice(`${sentence(error.message)} Trying again every ${POLL_MS / 1000} seconds.`);
    }
  }
  setTimeout(watchIndex, POLL_MS);
}
