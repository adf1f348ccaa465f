"use strict";

// Text of users enters the page as text nodes only, so that it can never become HTML.

const TYPING_PAUSE = 300; // milliseconds without a key before the text is translated
const BATCH_LINES = 50; // lines of a file in one request
const RETRIES = 20; // of a request that the server is too busy for

const element = (id) => document.getElementById(id);
const form = element("form");
const text = element("text");
const output = element("translation");
const maxCharacters = Number(form.dataset.maxCharacters);

let languages = []; // source languages with their targets
let pending = null; // AbortController of the newest request
let timer = 0;

// --- requests -------------------------------------------------------------------------------------------------------

class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function post(body, signal) {
  const headers = { "Content-Type": "application/json" };
  const key = element("key");
  if (key && key.value) headers.Authorization = `Bearer ${key.value}`;
  const answer = await fetch("translate", { method: "POST", headers, body: JSON.stringify(body), signal });
  const content = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (!answer.ok) throw new RequestError(answer.status, content.error);
  return content;
}

function pair() {
  return { source: element("source").value, target: element("target").value };
}

// --- live translation -----------------------------------------------------------------------------------------------

function translateSoon() {
  showCount();
  clearTimeout(timer);
  timer = setTimeout(translate, TYPING_PAUSE);
}

async function translate() {
  clearTimeout(timer);
  if (pending) pending.abort(); // the server drops its waiting lines
  const controller = new AbortController();
  pending = controller;
  if (!text.value.trim()) {
    show("", "");
    return;
  }
  output.classList.add("stale");
  element("status").textContent = "Translating …";
  try {
    const answer = await post({ q: text.value, ...pair() }, controller.signal);
    if (pending !== controller) return;
    const detected = answer.detectedLanguage;
    show(answer.translatedText, detected ? `Detected: ${languageName(detected.language)}` : "");
  } catch (problem) {
    if (pending !== controller || problem.name === "AbortError") return;
    element("status").textContent = "";
    showError(problem);
  }
}

function show(translation, detected) {
  output.classList.remove("stale");
  output.textContent = translation;
  element("detected").textContent = detected;
  element("status").textContent = "";
  element("error").textContent = "";
}

function showError(problem) {
  const message = problem instanceof RequestError ? problem.message : "The server does not answer.";
  element("error").textContent = message;
}

function showCount() {
  const length = [...text.value].length;
  element("count").textContent = length > 0.8 * maxCharacters ? `${length} of ${maxCharacters} characters` : "";
}

function languageName(code) {
  const option = [...element("source").options].find((one) => one.value === code);
  return option ? option.textContent : code;
}

// --- files ----------------------------------------------------------------------------------------------------------

let fileWork = null; // AbortController of the file that is translated

async function translateFile(file) {
  if (fileWork) fileWork.abort();
  const controller = new AbortController();
  fileWork = controller;
  element("file-work").hidden = false;
  element("download").hidden = true;
  element("cancel").hidden = false;
  element("progress").value = 0;
  const status = element("file-status");
  try {
    const decoder = new TextDecoder("utf-8", { fatal: true });
    const lines = decoder.decode(await file.arrayBuffer()).replace(/\r?\n$/, "").split(/\r?\n/);
    const results = [];
    for (const batch of batches(lines)) {
      status.textContent = `${results.length} of ${lines.length} lines`;
      results.push(...(await translateBatch(batch, controller.signal)));
      element("progress").value = results.length / lines.length;
    }
    status.textContent = `${lines.length} lines translated.`;
    offerDownload(results, file.name);
  } catch (problem) {
    if (fileWork !== controller) return;
    if (problem.name === "AbortError") status.textContent = "Cancelled.";
    else if (problem instanceof RequestError || problem instanceof RangeError) status.textContent = problem.message;
    else status.textContent = problem instanceof TypeError && problem.message.includes("encod") ? "This file is not UTF-8 text." : "The server does not answer.";
  }
  element("cancel").hidden = true;
}

function* batches(lines) {
  let batch = [];
  let size = 0;
  for (const [number, line] of lines.entries()) {
    if (line.length > maxCharacters) throw new RangeError(`Line ${number + 1} has more than ${maxCharacters} characters.`);
    if (batch.length === BATCH_LINES || size + line.length > maxCharacters) {
      yield batch;
      batch = [];
      size = 0;
    }
    batch.push(line);
    size += line.length;
  }
  if (batch.length) yield batch;
}

async function translateBatch(lines, signal) {
  if (!lines.some((line) => line.trim())) return lines.map(() => "");
  for (let attempt = 0; ; attempt += 1) {
    try {
      return (await post({ q: lines, ...pair() }, signal)).translatedText;
    } catch (problem) {
      if (problem.status !== 429 || attempt === RETRIES) throw problem;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

function offerDownload(results, name) {
  const link = element("download");
  if (link.href) URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob([results.map((line) => `${line}\n`).join("")], { type: "text/plain" }));
  link.download = `${name.replace(/\.[^.]*$/, "")}.${pair().target}.txt`;
  link.hidden = false;
}

// --- events ---------------------------------------------------------------------------------------------------------

async function copy() {
  const content = output.textContent;
  try {
    await navigator.clipboard.writeText(content);
    element("status").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(output); // pages without HTTPS have no clipboard
    element("status").textContent = "Selected: copy with Ctrl-C.";
  }
}

function showSwap() {
  const { source, target } = pair();
  element("swap").hidden = !languages.some((one) => one.code === target && one.targets.includes(source));
}

function swap() {
  const { source, target } = pair();
  element("source").value = target;
  element("target").value = source;
  text.value = output.textContent;
  translate();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
text.addEventListener("input", translateSoon);
for (const id of ["source", "target"]) element(id).addEventListener("change", () => (showSwap(), translate()));
element("swap").addEventListener("click", swap);
element("copy").addEventListener("click", copy);
element("file").addEventListener("change", (event) => event.target.files[0] && translateFile(event.target.files[0]));
element("cancel").addEventListener("click", () => fileWork && fileWork.abort());
fetch("languages")
  .then((answer) => answer.json())
  .then((found) => {
    languages = found;
    showSwap();
    if (text.value.trim()) translate();
  })
  .catch(showError);
showCount();
