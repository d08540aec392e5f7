// Changes that can be undone: going back to a version, and asking before it.
import {call} from "./api.js";
import {$, announce, errorBox, h} from "./dom.js";
import {index, navigate, refreshIndex} from "./state.js";
import {toast} from "./toast.js";

/** True if the reader agrees. Cancel has focus, and the dialog stands in the middle: no second click agrees by accident. */
export function agreed(title, detail, label) {
  const dialog = $("#confirm");
  return new Promise((resolve) => {
    dialog.replaceChildren(h("h2", {id: "confirm-title"}, title), h("p", {class: "soft"}, detail),
      h("form", {method: "dialog", class: "line"},
        h("button", {value: "", autofocus: true}, "Cancel"), h("button", {value: "yes", class: "main", "data-testid": "agree"}, label)));
    dialog.returnValue = ""; // Escape leaves it as it is
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), {once: true});
    dialog.showModal();
  });
}

/** Go back to a version; "Undo" goes back to the one left. */
export async function goBack(generation, message) {
  const left = index.generation;
  try {
    const {generation: made} = await call("POST", "api/rollback", {json: {generation}});
    navigate({at: null});
    await refreshIndex();
    toast(message, undoTo(left, made)).focus();
  } catch (error) {
    toast(errorBox(error));
  }
}

/** The action "Undo" of a toast: back to the version before `made`, unless someone has changed something since. */
export function undoTo(before, made, afterwards = () => {}) {
  return {label: "Undo", testid: "undo", run: async () => {
    try {
      await refreshIndex();
      if (index.generation !== made) return void toast("There has been another change since. Use Versions to go back.");
      await call("POST", "api/rollback", {json: {generation: before}});
      await refreshIndex();
      announce("Undone.");
      await afterwards();
    } catch (error) {
      toast(errorBox(error));
    }
  }};
}
