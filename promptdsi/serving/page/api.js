// Every call to the server goes through here: the token, the errors, and retries after 429 and 503.
import {notice} from "./dom.js";
import {askForToken, token} from "./token.js";

export class ServerError extends Error {
  constructor(status, {code, message, hint, request_id: requestId}) {
    super(message);
    Object.assign(this, {status, code, hint, requestId});
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** JSON in, JSON out. Paths are relative, so that the page also works below a prefix of a reverse proxy. */
export async function call(method, path, {json, lines, bytes, signal} = {}) {
  const headers = {Accept: "application/json"};
  if (json) headers["Content-Type"] = "application/json";
  if (lines) headers["Content-Type"] = "application/x-ndjson";
  if (bytes) headers["Content-Type"] = "application/octet-stream";
  let retried = false;
  for (;;) {
    const used = token();
    if (used) headers.Authorization = `Bearer ${used}`;
    const response = await send(path, {method, headers, signal, body: json ? JSON.stringify(json) : lines ?? bytes});
    if (response.ok) {
      notice(null);
      return response.json();
    }
    const error = await errorOf(response);
    if (response.status === 401 || error.code === "forbidden") { // forbidden: this token may read, another may write
      if (!await askForToken(used, error.message)) throw error;
    } else if (response.status === 503 && error.code === "not_ready") {
      notice("Opening the index …");
      await sleep(1000);
    } else if (response.status === 429 && !retried) {
      retried = true;
      await sleep(1000 * Math.min(10, Number(response.headers.get("Retry-After")) || 1));
    } else {
      throw error;
    }
  }
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, {code: "unreachable", message: "The server does not answer",
      hint: "Is `promptdsi serve` still running?"});
  }
}

async function errorOf(response) {
  try {
    return new ServerError(response.status, (await response.json()).error);
  } catch { // a proxy in between may answer in its own words
    return new ServerError(response.status, {code: "unknown",
      message: `The server answered with status ${response.status} and no explanation`});
  }
}
