// Filters: a choice for each field of the metadata, with the number of documents of each value.
import {call} from "./api.js";
import {$, h} from "./dom.js";
import {index, navigate, onIndex, onState, state} from "./state.js";

const FIELDS = 5; // shown at a time: more would be a form
const UNFIT = /[,*]/; // in a value they would mean something else in a condition

let loadedFor = null;
const clear = h("button", {type: "button", class: "link", "data-testid": "clear-filters", onclick: clearFilters}, "Clear filters");

export function setUpFilters() {
  onIndex(load);
  onState((before) => { if (String(before.where) !== String(state.where)) mark(); });
}

export function clearFilters() {
  navigate({where: []});
  $("#query").focus(); // the button is hidden now
}

async function load() {
  if (loadedFor === index.generation) return;
  loadedFor = index.generation;
  try {
    show((await call("GET", "api/facets")).facets);
  } catch { // without them one can search all the same
    loadedFor = null;
  }
}

function show(facets) {
  const fit = facets.map(({field, values}) => ({field, values: values.filter(([value]) => value && !UNFIT.test(value))}))
    .filter(({values}) => values.length > 1 && values.some(([, documents]) => documents > 1)).slice(0, FIELDS);
  $("#filters").hidden = fit.length === 0;
  $("#filters").replaceChildren(...fit.map(choice), clear);
  mark();
}

const choice = ({field, values}) => h("label", {class: "filter"}, h("span", {class: "soft"}, field),
  h("select", {"data-field": field, "data-testid": "filter", onchange: choose},
    h("option", {value: ""}, "any"), values.map(([value, documents]) => h("option", {value}, `${value} (${documents})`))));

function choose() {
  const chosen = [...document.querySelectorAll("#filters select")].filter((select) => select.value);
  navigate({where: chosen.map((select) => `${select.dataset.field}=${select.value}`), tab: "search"});
}

/** The choices that the address asks for. */
function mark() {
  clear.hidden = state.where.length === 0;
  for (const select of document.querySelectorAll("#filters select")) {
    const start = `${select.dataset.field}=`;
    select.value = state.where.find((condition) => condition.startsWith(start))?.slice(start.length) ?? "";
  }
}
