// Short messages at the foot of the page, with one action such as Undo. They stay while they have focus or the pointer.
import {$, h} from "./dom.js";

const STAY_MS = 12000;

/** Show content; `action` is {label, testid, run}. Returns the action's button, so that focus can move to it. */
export function toast(content, action) {
  const button = action && h("button", {type: "button", "data-testid": action.testid,
    onclick: () => { close(); action.run(); }}, action.label);
  const dismiss = h("button", {type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => close()}, "×");
  const box = h("div", {class: "toast", onkeydown: (event) => { if (event.key === "Escape") close(); }},
    h("div", {role: "status"}, content), button, dismiss);

  function close() {
    clearTimeout(timer);
    const focused = box.contains(document.activeElement);
    box.remove();
    if (focused) $("#query").focus(); // focus must not fall back to the top of the page
  }
  function expire() {
    // A mouse user's click leaves focus behind without attention, hence :focus-visible.
    if (box.matches(":hover") || box.querySelector(":focus-visible")) timer = setTimeout(expire, 2000);
    else close();
  }
  let timer = setTimeout(expire, STAY_MS);
  $("#toasts").append(box);
  return button;
}
