// Adding documents: let the server read the files, send what it read as JSON lines, follow the job, show its report.
import {call} from "./api.js";
import {documentList} from "./document.js";
import {$, announce, count, duration, empty, errorBox, fact, h, number, percent, prose} from "./dom.js";
import {index, refreshIndex} from "./state.js";

const POLL_MS = 400;
const PREVIEWED = 20;
const BEGINNING = 220; // characters of a document in its preview
const LINES = /\.(jsonl|ndjson)$/i;

let ready = null; // {lines, documents}: what would be sent
let following = false; // a job's progress is on the page
let built = null; // for which answer of "writable" the view was built
const chosen = h("p", {role: "status"});
const outcome = h("div", {class: "outcome"});
const files = h("input", {type: "file", multiple: true, "data-testid": "files",
  onchange: () => prepare([...files.files])});
const name = h("input", {id: "collection-name", type: "text", autocomplete: "off", spellcheck: "false", required: true});
const fast = h("input", {type: "checkbox"});
const update = h("input", {type: "checkbox"});
const start = h("button", {type: "submit", class: "main", disabled: true, "data-testid": "start-add"}, "Add documents");

export function showAdd() {
  if (!index || built === index.writable) return;
  built = index.writable;
  if (!index.writable) {
    $("#add-body").replaceChildren(empty("Documents cannot be added here.",
      h("p", {class: "soft"}, prose("Start it with `promptdsi serve INDEX --allow-write` to add and delete documents here, " +
        "or add them with `promptdsi add INDEX FOLDER`; this page notices."))));
    return;
  }
  const drop = h("label", {class: "drop", ondragover: drag, ondragleave: drag, ondrop: drag}, files,
    h("span", {class: "lead"}, "Drop files here, or choose them"),
    h("span", {class: "soft"}, "PDF, Word, PowerPoint, text, Markdown, web pages, e-books, e-mail and more"));
  $("#add-body").replaceChildren(
    h("form", {class: "add", onsubmit: (event) => { event.preventDefault(); send(); }}, drop, chosen,
      h("div", {class: "field"}, h("label", {for: name.id}, "Name of this collection"), name,
        h("span", {class: "soft small"}, "Documents added together form a collection. The name is shown with each result.")),
      option(fast, "Add quickly", "They can be found sooner, a little less well. `promptdsi tune INDEX` trains them later."),
      option(update, "Replace documents that changed", "A file with the name of one that is here takes its place. Otherwise it is refused."),
      start),
    outcome);
}

const option = (box, label, help) => h("label", {class: "option"}, box,
  h("span", {}, label, h("span", {class: "soft small"}, prose(help))));

function drag(event) {
  event.preventDefault(); // or the browser opens the file
  event.currentTarget.classList.toggle("over", event.type === "dragover");
  if (event.type === "drop") prepare([...event.dataTransfer.files]);
}

async function prepare(list) {
  setReady(null);
  if (!following) outcome.replaceChildren();
  if (list.length === 0) return;
  try {
    setReady(await read(list));
    name.value = freeName(list[0].name.replace(/\.[^.]*$/, "") || "documents");
    chosen.replaceChildren(h("b", {}, count(ready.documents, "document")),
      ` in ${list.length === 1 ? list[0].name : count(list.length, "file")}`, preview(ready));
  } catch (error) {
    outcome.replaceChildren(errorBox(error));
  }
}

function setReady(what) {
  ready = what;
  start.disabled = !ready || following;
  if (!ready) chosen.replaceChildren();
}

function setFollowing(now) {
  following = now;
  start.disabled = !ready || following;
  $("[data-tab=add]").classList.toggle("busy", following);
}

async function read(list) {
  const jsonl = list.filter((file) => LINES.test(file.name));
  if (jsonl.length > 0 && list.length > 1) throw problem("One .jsonl at a time, and no other files with it", null);
  const total = list.reduce((sum, file) => sum + file.size, 0);
  checkSize(total); // before a huge file is read into memory
  const {lines, ...shown} = jsonl.length > 0 ? {lines: await decode(list[0])} : await readByServer(list);
  checkSize(new Blob([lines]).size); // JSON's escapes have added some
  const documents = lines.split("\n").filter((line) => line.trim()).length;
  if (documents === 0) throw shown.refused?.[0] ?? problem("There is no document in it", null);
  return {lines, documents, ...shown};
}

/** One after the other: the server reads one file at a time. A file that cannot be read is named, and the others are added. */
async function readByServer(list) {
  const read = [], notes = [], refused = [];
  for (const [place, file] of list.entries()) {
    chosen.replaceChildren(`Reading ${file.name} (${place + 1} of ${list.length}) …`);
    try {
      const answer = await call("POST", `api/read?${new URLSearchParams({name: file.name})}`, {bytes: file});
      read.push(answer.document);
      notes.push(...answer.notes.map((note) => `${file.name}: ${note}`));
    } catch (error) {
      if (error.code !== "file") throw error;
      refused.push(error);
    }
  }
  const line = ({docid, title, text, metadata}) => JSON.stringify({...metadata, _id: docid, title, text});
  return {lines: read.map(line).join("\n"), read, notes, refused};
}

const shortened = (text) => (text.length > BEGINNING ? `${text.slice(0, BEGINNING).replace(/\S*$/, "")}…` : text);

/** How files were read, before anything is added: title, size, beginning, and what was left out. */
function preview({read = [], notes = [], refused = []}) {
  if (read.length + refused.length === 0) return null;
  const entry = (document) => h("li", {}, h("b", {}, document.title || document.docid), h("p", {class: "soft small"}, sizeOf(document)),
    h("p", {class: "small"}, shortened(document.text)));
  return h("details", {class: "preview", open: read.length <= 3, "data-testid": "preview"}, h("summary", {}, "How the files were read"),
    h("ul", {}, read.slice(0, PREVIEWED).map(entry),
      read.length > PREVIEWED && h("li", {class: "soft"}, `and ${count(read.length - PREVIEWED, "more document")}`),
      notes.map((note) => h("li", {class: "soft"}, note)),
      refused.map((error) => h("li", {class: "refused"}, `Not added: ${error.message}`))));
}

/** File name, pages and words of a document that was read. */
function sizeOf({docid, text, metadata}) {
  const words = text.split(/\s+/).filter(Boolean).length;
  return [docid, metadata.pages?.length > 1 && count(metadata.pages.length, "page"), count(words, "word")].filter(Boolean).join(" · ");
}

async function decode(file) {
  try {
    return new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
  } catch {
    throw problem(`The file ${file.name} is not UTF-8 text`, null);
  }
}

const problem = (message, hint) => Object.assign(new Error(message), {hint});

function checkSize(bytes) {
  const mib = (size) => `${(size / 2 ** 20).toFixed(1)} MiB`;
  if (bytes > index.limits.body) {
    throw problem(`That is ${mib(bytes)}, and the server takes ${mib(index.limits.body)} at a time`,
      "Add it in parts, or use `promptdsi add INDEX FOLDER`, which has no such limit.");
  }
}

const takenNames = () => new Set(index.corpora.map((corpus) => corpus.name));

/** Names of collections are unique in an index. */
function freeName(base) {
  const taken = takenNames();
  let free = base;
  for (let i = 2; taken.has(free); i++) free = `${base}-${i}`;
  return free;
}

async function send() {
  const sent = ready;
  if (takenNames().has(name.value.trim())) {
    outcome.replaceChildren(errorBox(problem(`There is a collection named ${name.value.trim()} already`, "Give this one another name.")));
    return;
  }
  const options = new URLSearchParams({name: name.value.trim(), fast: fast.checked, update: update.checked});
  outcome.replaceChildren();
  start.disabled = true;
  try {
    const done = await follow(await call("POST", `api/documents?${options}`, {lines: sent.lines}));
    outcome.scrollIntoView({block: "nearest"}); // a report is longer than the progress it follows
    if (!done || ready !== sent) return; // kept to try again, for example with another option ticked
    files.value = name.value = "";
    setReady(null);
  } catch (error) {
    outcome.replaceChildren(errorBox(error));
    outcome.scrollIntoView({block: "nearest"});
    start.disabled = !ready;
  }
}

/** After a reload: is a job under way? */
export async function resumeJob() {
  const {jobs} = await call("GET", "api/jobs");
  const job = jobs.find(({state}) => state === "running") ?? jobs.find(({state}) => state === "waiting");
  if (job) await follow(job);
}

/** Show a job's progress until it ends; true if its documents are in the index. */
async function follow(job) {
  setFollowing(true);
  announce(`Adding ${count(job.documents, "document")}.`);
  try {
    while (job.state === "waiting" || job.state === "running") {
      showProgress(job);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      job = await call("GET", `api/jobs/${encodeURIComponent(job.id)}`).catch((error) => {
        if (error.code === "unreachable") return job; // the job may well go on without us
        throw error;
      });
    }
  } finally {
    setFollowing(false);
  }
  if (job.state === "failed") {
    outcome.replaceChildren(errorBox(job.error));
    return false;
  }
  outcome.replaceChildren(reportOf(job.report));
  announce(`Added ${job.report.corpus}.`);
  await refreshIndex();
  return true;
}

function showProgress({corpus, done, total, seconds, state}) {
  // Kept from call to call: a new bar each time would neither glide nor be followed by screen readers.
  const card = $("[data-testid=progress]", outcome) ?? h("div", {class: "card", "data-testid": "progress"},
    h("p", {class: "line"}, h("b", {}, corpus), h("span", {class: "stage"}), h("span", {class: "figure soft"})),
    h("div", {class: "progress", role: "progressbar", "aria-label": `Adding ${corpus}`, "aria-valuemin": 0, "aria-valuemax": 100},
      h("span")));
  const measurable = total > 0 && done !== null;
  const bar = $(".progress", card);
  bar.classList.toggle("unknown", !measurable);
  bar.firstChild.style.width = measurable ? `${100 * done / total}%` : "";
  if (measurable) bar.setAttribute("aria-valuenow", Math.round(100 * done / total));
  else bar.removeAttribute("aria-valuenow");
  $(".stage", card).textContent = state === "waiting" ? "waits for its turn" : "is being learned";
  $(".figure", card).textContent = duration(seconds);
  if (card.isConnected) return;
  outcome.replaceChildren(card);
  outcome.scrollIntoView({block: "nearest"});
}

function reportOf(report) {
  const fresh = report.added - report.updated;
  const counts = [fresh > 0 && `${number(fresh)} new`, report.updated > 0 && `${number(report.updated)} replaced`,
    report.unchanged > 0 && `${number(report.unchanged)} unchanged`].filter(Boolean).join(", ");
  return h("div", {class: "card", "data-testid": "report"},
    h("p", {class: "lead"}, `${report.corpus} can be searched now`),
    h("dl", {class: "facts"},
      fact("Documents", `${counts}; this is version ${report.generation}`),
      fact("Time", duration(report.seconds)),
      fact("Test questions", report.dev_hits10 !== null &&
        `${percent(report.dev_hits10)} of ${count(report.dev_queries, "question")} about these documents find the right one in the first ten results`),
      fact("Older documents", report.drift &&
        `${percent(report.drift.after)} of the test questions about them find the right one in the first ten results; before, ${percent(report.drift.before)}`),
      fact("Too long", report.truncated > 0 && `${count(report.truncated, "document")} could not be read to the end`),
      fact("Self-check", report.unfindable_count === 0 ? `Each of ${count(report.examined, "document")} tried is found.`
        : ["These are hard to find:", documentList(report.unfindable, report.unfindable_count)])),
    report.fast && h("p", {class: "soft"}, prose("These documents were added quickly and are not trained yet; `promptdsi tune INDEX` does that.")));
}
