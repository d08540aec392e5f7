// Helpers that build and word the page. Text from the index is hostile, so nothing here turns a string into markup.

export const $ = (selector, root = document) => root.querySelector(selector);

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** h("p", {class: "soft", onclick: act}, "text", child): strings become text nodes. */
export const h = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);

/** The same for SVG. */
export const svg = (tag, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** Our own sentences and the server's hints put commands between backticks; show those as code. */
export const prose = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

export const number = (n) => n.toLocaleString("en");
export const count = (n, noun, plural = `${noun}s`) => `${number(n)} ${n === 1 ? noun : plural}`;
export const percent = (share) => `${(share * 100).toFixed(1)} %`;
/** A probability is never 0 or 1. */
export const probability = (share) => (share < 0.01 ? "< 1 %" : share > 0.99 ? "> 99 %" : `${Math.round(100 * share)} %`);
export const figure = (value) => value.toFixed(3).replace("-", "−");
export const when = (iso) => new Date(iso).toLocaleString("en-GB", {dateStyle: "medium", timeStyle: "short"});
export const duration = (s) => (s < 90 ? `${s.toFixed(s < 10 ? 1 : 0)} s` : `${Math.round(s / 60)} min`);
export const nameOf = ({title, docid}) => title || docid;

/** Say something to screen readers only. */
export function announce(text) {
  $("#live").textContent = text;
}

/** The line under the tabs for states of the whole server; null takes it away. */
export function notice(text) {
  $("#notice").hidden = !text;
  if (text) $("#notice").textContent = text;
}

/** An error in full: what, what to do, and the id under which the server's log has it. */
export function errorBox(error, retry) {
  return h("div", {class: "error", role: "alert", "data-testid": "error"},
    h("p", {}, h("strong", {}, sentence(error.message))),
    error.hint && h("p", {}, prose(sentence(error.hint))),
    error.requestId && h("p", {class: "small soft"}, `${error.code} · request ${error.requestId}`),
    retry && h("button", {type: "button", onclick: retry}, "Try again"));
}

/** The server's messages begin small and end without a full stop. */
export function sentence(text) {
  const upper = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
}

export const empty = (title, ...children) => h("div", {class: "empty"}, h("p", {class: "lead"}, title), ...children);
export const loading = (text) => h("p", {class: "loading soft"}, text);

/** A pair "term, description" of a <dl>, left out when there is nothing to say. */
export const fact = (term, ...description) =>
  description.some((part) => part != null && part !== false) ? [h("dt", {}, term), h("dd", {}, ...description)] : [];

/** A few mutually exclusive options as radio buttons, so that arrow keys work without our help. */
export function choice(label, options, chosen, onChange) {
  return h("fieldset", {class: "choice"}, h("legend", {class: "unseen"}, label),
    Object.entries(options).map(([value, text]) => h("label", {},
      h("input", {type: "radio", name: label, value, checked: value === chosen, onchange: () => onChange(value)}),
      h("span", {}, text))));
}

// Colors come in ten, then repeat; shapes tell the repeats apart, and tell lines apart without color.
export const colorOf = (i) => `var(--c${i % 10})`;

const SHAPES = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0 ${-1.3 * r}L${1.2 * r} ${0.9 * r}H${-1.2 * r}z`,
  (r) => `M0 ${-1.35 * r}L${1.35 * r} 0L0 ${1.35 * r}L${-1.35 * r} 0z`,
  (r) => `M0 ${1.3 * r}L${1.2 * r} ${-0.9 * r}H${-1.2 * r}z`,
];

/** A small shape around 0,0 as path data. */
export const shape = (i, radius) => SHAPES[i % SHAPES.length](radius);
