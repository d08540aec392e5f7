// The bearer token: in sessionStorage only, from the address's fragment or from the form the page shows on a 401.
import {$, announce} from "./dom.js";

const KEY = "promptdsi-token";
let current = sessionStorage.getItem(KEY); // null, or the token
let pending = null; // {promise, resolve}: one form for all calls that wait for it; true when there is a new token

export const token = () => current;

function useToken(value) {
  current = value;
  sessionStorage.setItem(KEY, value);
  if (pending) closeForm(true);
}

function closeForm(hasToken) {
  $("#token-form").hidden = true;
  $("#query").focus();
  pending.resolve(hasToken);
  pending = null;
}

function takeFromAddress() {
  const value = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!value) return;
  // At once, before anything can copy, bookmark or log the address.
  history.replaceState(history.state, "", location.pathname + location.search);
  useToken(value);
}

/** True when there is another token than the one that was refused; false when the reader has none. */
export function askForToken(refused, reason) {
  if (refused !== current) return Promise.resolve(true);
  if (!pending) {
    pending = Promise.withResolvers();
    $("#token-title").textContent = refused === null ? "A token is needed" : `Another token is needed: ${reason}`;
    announce($("#token-title").textContent);
    $("#token-form").hidden = false;
    $("#token").value = "";
    $("#token").focus();
  }
  return pending.promise;
}

$("#token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("#token").value.trim());
});
$("#token-cancel").addEventListener("click", () => closeForm(false));
addEventListener("hashchange", takeFromAddress);
takeFromAddress();
