// The map: every document as a point, colored by corpus or topic, the present hits ringed.
// A canvas, because there may be thousands of points; arrow keys walk from point to point.
import {call} from "./api.js";
import {showTip} from "./chart.js";
import {openDocument} from "./document.js";
import {$, announce, choice, colorOf, count, errorBox, h, loading, nameOf, number, percent, shape, svg} from "./dom.js";
import {onHits} from "./search.js";
import {index, state} from "./state.js";

const REACH = 14; // pixels around a point that count as on it
const PADDING = 18;
const KEYS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};

let loadedFor = null;
let data = null;
let by = "corpus";
let onlyGroup = null; // the group chosen in the legend; null shows all
let current = null; // the point under the pointer or the keyboard
let hits = [];
let fit = null; // the middle and the scale that bring the points into the frame
const canvas = h("canvas", {"aria-hidden": "true"});
const tip = h("div", {class: "tip", "aria-hidden": "true", hidden: true});
const frame = h("div", {class: "map", tabindex: 0, role: "application", "data-testid": "map",
  "aria-label": "Map of the documents. Arrow keys move between documents, Enter opens one.",
  onkeydown: walk, onpointermove: point, onpointerleave: leave, onblur: leave,
  onclick: (event) => { point(event); open(); }}, canvas, tip);
const key = h("div"); // holds the legend
const ringed = h("p", {class: "soft small"});

export function setUpMap() {
  new ResizeObserver(draw).observe(frame);
  document.addEventListener("themechange", draw);
  onHits((docids) => { hits = docids; draw(); });
}

export async function showMap() {
  const generation = state.at ?? index?.generation;
  if (!generation || generation === loadedFor) return;
  loadedFor = generation;
  if (!data) $("#map-body").replaceChildren(loading("Drawing the map …"));
  try {
    const answer = await call("GET", `api/map${state.at ? `?at=${state.at}` : ""}`);
    if (generation !== loadedFor) return;
    data = answer;
    if (data.topics.length === 0) by = "corpus";
    current = onlyGroup = null;
    layOut();
  } catch (error) {
    if (generation !== loadedFor) return;
    loadedFor = data = null;
    $("#map-body").replaceChildren(errorBox(error, showMap));
  }
}

/** Names and sizes of the groups that colors stand for. */
function groups() {
  if (by === "topic") return data.topics.map((topic) => ({name: topic.words.join(", "), size: topic.count}));
  return data.corpora.map((name, i) => ({name, size: data.points.filter((each) => each.corpus === i).length}));
}

function layOut() {
  const options = data.topics.length > 0 ? {corpus: "By corpus", topic: "By topic"} : {corpus: "By corpus"};
  const shown = data.shown < data.documents ? `${number(data.shown)} of ${count(data.documents, "document")} are shown`
    : `All ${count(data.documents, "document")} are shown`;
  $("#map-body").replaceChildren(
    h("p", {class: "soft"}, `${shown}, as of generation ${data.generation}. Documents that the model finds similar are close together: `,
      `${percent(data.neighbor_recall)} of a document’s five most similar documents are among the ten nearest to it here.`),
    h("div", {class: "map-columns"}, frame,
      h("div", {}, choice("Color", options, by, (chosen) => { by = chosen; onlyGroup = null; showGroups(); }), key, ringed)));
  showGroups();
}

function showGroups() {
  key.replaceChildren(legend());
  draw();
}

const legend = () => h("ul", {class: "legend", "aria-label": by === "topic" ? "Topics" : "Corpora"},
  groups().map(({name, size}, i) => {
    const swatch = svg("svg", {viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": "true"},
      svg("path", {d: shape(Math.floor(i / 10), 5), fill: "currentColor"}));
    swatch.style.color = colorOf(i);
    return h("li", {}, h("button", {type: "button", class: "quiet", "aria-pressed": String(onlyGroup === i), title: name,
      onclick: (event) => choose(i, event.currentTarget)}, swatch, h("span", {class: "name"}, name),
      h("span", {class: "figure soft"}, number(size))));
  }));

function choose(group, button) {
  onlyGroup = onlyGroup === group ? null : group;
  for (const each of button.closest("ul").querySelectorAll("button")) {
    each.setAttribute("aria-pressed", each === button && onlyGroup !== null);
  }
  draw();
}

const placeX = (each) => frame.clientWidth / 2 + (each.x - fit.x) * fit.scale;
const placeY = (each) => frame.clientHeight / 2 - (each.y - fit.y) * fit.scale; // up is up
const groupOf = (each) => (by === "topic" ? each.topic : each.corpus);
const inChosen = (each) => onlyGroup === null || groupOf(each) === onlyGroup;

/** One scale for both axes, since distances are what the map is about; as large as the frame allows. */
function fitTo(width, height) {
  const range = (values) => [Math.min(...values), Math.max(...values)];
  const [left, right] = range(data.points.map((each) => each.x));
  const [low, high] = range(data.points.map((each) => each.y));
  const scale = Math.min((width - 2 * PADDING) / (right - left || 1), (height - 2 * PADDING) / (high - low || 1));
  return {x: (left + right) / 2, y: (low + high) / 2, scale};
}

function draw() {
  const {clientWidth: width, clientHeight: height} = frame;
  if (!data || !frame.isConnected || width === 0) return;
  fit = fitTo(width, height);
  const scale = devicePixelRatio;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  const radius = data.shown > 1000 ? 2.4 : 3.6;
  const ink = computed("var(--ink)");
  const grey = computed("var(--soft)");
  const colors = Array.from({length: 10}, (_, i) => computed(colorOf(i)));
  const shapes = Array.from({length: 5}, (_, i) => new Path2D(shape(i, radius)));
  const ranks = new Map(hits.map((docid, i) => [docid, i]));
  const at = (each, paint) => {
    pen.setTransform(scale, 0, 0, scale, placeX(each) * scale, placeY(each) * scale);
    paint();
  };
  const ring = (size, thickness) => {
    pen.globalAlpha = 1;
    pen.strokeStyle = ink;
    pen.lineWidth = thickness;
    pen.stroke(new Path2D(shape(0, size)));
  };

  for (const each of data.points) {
    const group = groupOf(each);
    pen.globalAlpha = inChosen(each) ? 0.85 : 0.1;
    pen.fillStyle = group === null ? grey : colors[group % 10];
    at(each, () => pen.fill(shapes[Math.floor((group ?? 0) / 10) % 5]));
  }
  const hitPoints = data.points.filter((each) => ranks.has(each.docid));
  for (const each of hitPoints) at(each, () => ring(ranks.get(each.docid) === 0 ? 9 : 7, ranks.get(each.docid) === 0 ? 2.4 : 1.4));
  if (current) at(current, () => ring(5.5, 2.4));
  ringed.textContent = hits.length > 0
    ? `Rings: ${hitPoints.length} of ${count(hits.length, "hit")} of the query, the widest around the best.` : "";
}

/** A canvas does not know CSS variables; an element does. */
function computed(color) {
  tip.style.outlineColor = color;
  return getComputedStyle(tip).outlineColor;
}

function select(each) {
  if (each === current) return;
  current = each;
  frame.classList.toggle("on-point", Boolean(each));
  if (each) showTip(tip, `${nameOf(each)} · ${data.corpora[each.corpus]}`, placeX(each), placeY(each), frame.clientWidth);
  else tip.hidden = true;
  draw();
}

function leave() {
  select(null);
}

function point(event) {
  if (!data) return;
  const box = frame.getBoundingClientRect();
  const distance = (each) => Math.hypot(placeX(each) - event.clientX + box.left, placeY(each) - event.clientY + box.top);
  const near = data.points.filter((each) => inChosen(each) && distance(each) < REACH);
  select(near.length > 0 ? near.reduce((best, each) => (distance(each) < distance(best) ? each : best)) : null);
}

function open() {
  if (current) openDocument(current.docid);
}

/** From point to point: the nearest in the arrow's direction, where being aside counts double. */
function walk(event) {
  if (!data) return;
  if (event.key === "Enter") {
    event.preventDefault(); // or the same key presses the dialog's first button
    open();
  }
  if (event.key === "Escape") leave();
  const direction = KEYS[event.key];
  if (!direction) return;
  event.preventDefault();
  const candidates = data.points.filter((each) => each !== current && inChosen(each));
  const cost = (each) => {
    const dx = placeX(each) - placeX(current);
    const dy = placeY(each) - placeY(current);
    const along = dx * direction[0] + dy * direction[1];
    return along > 0 ? along + 2 * Math.abs(dx * direction[1] + dy * direction[0]) : Infinity;
  };
  const middle = (each) => Math.hypot(each.x, each.y);
  const rank = current ? cost : middle; // the first key goes to the middle
  const best = candidates.reduce((nearest, each) => (nearest === null || rank(each) < rank(nearest) ? each : nearest), null);
  if (!best || rank(best) === Infinity) return;
  select(best);
  announce(`${nameOf(best)}, ${data.corpora[best.corpus]}`);
}
