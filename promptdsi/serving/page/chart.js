// Do new documents push out old ones? A chart with one line per collection over the versions, drawn by hand as SVG, with a table.
// Lines differ in shape of points and dashes as well as color, and carry their names at their ends.
import {choice, colorOf, h, percent, shape, svg} from "./dom.js";

const METRICS = {hits10: "In the first ten", hits1: "First"};
const SAYS = {hits10: "found in the first ten", hits1: "found first"};
const DASHES = ["", "6 4", "2 3", "9 3 2 3", "12 4"];
const LABEL_GAP = 18;
const MARGIN = {top: 16, right: 118, bottom: 40, left: 46};

export function retentionChart(records) {
  const series = seriesOf(records);
  let metric = "hits10";
  const place = h("div", {class: "chart"});
  const table = h("div", {class: "scroll"});
  const draw = () => {
    if (place.clientWidth > 0) drawLines(place, series, metric);
    table.replaceChildren(tableOf(series, metric));
  };
  new ResizeObserver(draw).observe(place);
  table.append(tableOf(series, metric));
  return h("figure", {class: "retention"},
    h("h2", {}, "Is what was added still found?"),
    h("p", {class: "soft"}, "The share of each collection’s test questions that find their document, version by version."),
    choice("Where in the results", METRICS, metric, (chosen) => { metric = chosen; draw(); }),
    place, h("details", {}, h("summary", {}, "The same as a table"), table));
}

/** Records by collection, in order of their first version; a later record of the same thing replaces an earlier one. */
function seriesOf(records) {
  const splits = new Set(records.map((record) => record.split));
  const byName = new Map();
  for (const record of records) {
    const name = splits.size > 1 ? `${record.corpus}, ${record.split}` : record.corpus;
    if (!byName.has(name)) byName.set(name, new Map());
    byName.get(name).set(record.generation, record);
  }
  return [...byName]
    .map(([name, points]) => ({name, points: [...points.values()].sort((a, b) => a.generation - b.generation)}))
    .sort((a, b) => a.points[0].generation - b.points[0].generation || a.name.localeCompare(b.name));
}

function drawLines(place, series, metric) {
  const all = series.flatMap(({points}) => points);
  const generations = all.map((point) => point.generation);
  const [first, last] = [Math.min(...generations), Math.max(...generations)];
  // A line at 99 % is worth seeing closely, so the axis starts below the lowest value, at a round number.
  const lowest = Math.max(0, Math.floor(Math.min(...all.map((point) => point[metric])) * 10 - 0.5) / 10);
  const width = place.clientWidth;
  const height = Math.max(280, MARGIN.top + MARGIN.bottom + series.length * LABEL_GAP);
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const x = (generation) => MARGIN.left + (right - MARGIN.left) * (last > first ? (generation - first) / (last - first) : 0.5);
  const y = (share) => bottom - (bottom - MARGIN.top) * (share - lowest) / (1 - lowest);

  const tip = h("div", {class: "tip", "aria-hidden": "true", hidden: true});
  const marks = [];
  const lines = series.map(({name, points}, i) => {
    const group = svg("g", {class: "series"});
    group.style.color = colorOf(i);
    group.append(svg("polyline", {points: points.map((point) => `${x(point.generation)},${y(point[metric])}`).join(" "),
      "stroke-dasharray": DASHES[i % DASHES.length]}));
    marks.push(points.map((point) => {
      const text = `${name}, version ${point.generation}: ${percent(point[metric])} of ${point.n} questions ${SAYS[metric]}`;
      const mark = svg("path", {d: shape(i, 4.5), tabindex: -1, role: "img", "aria-label": text, class: "mark",
        transform: `translate(${x(point.generation)} ${y(point[metric])})`});
      const show = () => showTip(tip, text, x(point.generation), y(point[metric]), width);
      for (const type of ["pointerenter", "focus"]) mark.addEventListener(type, show);
      for (const type of ["pointerleave", "blur"]) mark.addEventListener(type, () => { tip.hidden = true; });
      group.append(mark);
      return mark;
    }));
    return group;
  });
  marks[0][0].setAttribute("tabindex", 0);

  place.replaceChildren(svg("svg", {width, height, role: "group",
    "aria-label": `Questions ${SAYS[metric]}, per collection and version. Arrow keys move between points.`,
    onkeydown: (event) => moveBetweenMarks(event, marks)},
    axes({first, last, lowest, x, y, right, bottom, height}), lines, endLabels(series, metric, x, y, right, bottom)), tip);
}

function axes({first, last, lowest, x, y, right, bottom, height}) {
  const rows = [0, 0.25, 0.5, 0.75, 1].map((part) => lowest + part * (1 - lowest));
  const step = Math.max(1, Math.ceil((last - first) / 8)); // not more numbers than there is room for
  const columns = [];
  for (let generation = first; generation <= last; generation += step) columns.push(generation);
  return svg("g", {class: "axes", "aria-hidden": "true"},
    rows.map((share) => [svg("line", {x1: MARGIN.left, x2: right, y1: y(share), y2: y(share)}),
      svg("text", {x: MARGIN.left - 8, y: y(share) + 4, "text-anchor": "end"}, `${Math.round(share * 1000) / 10}`)]),
    columns.map((generation) => svg("text", {x: x(generation), y: bottom + 18, "text-anchor": "middle"}, generation)),
    svg("text", {x: (MARGIN.left + right) / 2, y: height - 4, "text-anchor": "middle"}, "version"),
    svg("text", {x: 0, y: 10}, "%"));
}

/** Names at the ends of their lines, pushed apart where lines meet. */
function endLabels(series, metric, x, y, right, bottom) {
  const labels = series.map(({name, points}, i) => {
    const end = points.at(-1);
    return {name, i, value: end[metric], fromX: x(end.generation), fromY: y(end[metric]), y: y(end[metric])};
  }).sort((a, b) => a.fromY - b.fromY || a.i - b.i);
  labels.forEach((label, i) => { if (i) label.y = Math.max(label.y, labels[i - 1].y + LABEL_GAP); });
  labels.at(-1).y = Math.min(labels.at(-1).y, bottom);
  for (let i = labels.length - 2; i >= 0; i--) labels[i].y = Math.min(labels[i].y, labels[i + 1].y - LABEL_GAP);
  return svg("g", {class: "ends", "aria-hidden": "true"}, labels.map((label) => {
    const short = label.name.length > 9 ? `${label.name.slice(0, 8)}…` : label.name;
    const group = svg("g", {}, svg("title", {}, label.name),
      svg("path", {class: "leader", d: `M${label.fromX + 6} ${label.fromY}L${right + 14} ${label.y}`}),
      svg("path", {class: "mark", d: shape(label.i, 4), transform: `translate(${right + 22} ${label.y})`}),
      svg("text", {x: right + 32, y: label.y + 4}, svg("tspan", {class: "name"}, short), ` ${(label.value * 100).toFixed(1)}`));
    group.style.color = colorOf(label.i);
    return group;
  }));
}

/** One tab stop for the whole chart: left and right follow a line, up and down change lines. */
function moveBetweenMarks(event, marks) {
  const line = marks.findIndex((row) => row.includes(event.target));
  const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
  if (!step || line < 0) return;
  event.preventDefault();
  const row = marks[line + step[0]] ?? marks[line];
  // Lines end together but begin apart, so places are counted from the end.
  const fromEnd = marks[line].length - 1 - marks[line].indexOf(event.target) - step[1];
  const next = row[row.length - 1 - Math.min(Math.max(0, fromEnd), row.length - 1)];
  event.target.setAttribute("tabindex", -1);
  next.setAttribute("tabindex", 0);
  next.focus();
}

/** Place a tooltip above a point, inside a frame that wide. */
function showTip(tip, text, x, y, width) {
  tip.textContent = text;
  tip.hidden = false;
  const half = tip.offsetWidth / 2;
  tip.style.left = `${Math.min(Math.max(x, half), width - half)}px`;
  tip.style.top = `${y - 12}px`;
  tip.classList.toggle("below", y < tip.offsetHeight + 16);
}

function tableOf(series, metric) {
  const generations = [...new Set(series.flatMap(({points}) => points.map((point) => point.generation)))].sort((a, b) => a - b);
  return h("table", {}, h("caption", {class: "unseen"}, `Percent of questions ${SAYS[metric]}, per collection and version`),
    h("thead", {}, h("tr", {}, h("th", {scope: "col"}, "Version"),
      generations.map((generation) => h("th", {scope: "col"}, generation)), h("th", {scope: "col"}, "questions"))),
    h("tbody", {}, series.map(({name, points}) => h("tr", {}, h("th", {scope: "row"}, name),
      generations.map((generation) => {
        const point = points.find((candidate) => candidate.generation === generation);
        return h("td", {}, point ? (point[metric] * 100).toFixed(1) : "");
      }),
      h("td", {}, points.at(-1).n)))));
}
