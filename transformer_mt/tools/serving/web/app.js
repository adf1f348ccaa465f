"use strict";

// Text of users enters the page as text nodes only, so that it can never become HTML.

const TYPING_PAUSE = 300; // milliseconds without a key before the text is translated
const BATCH_LINES = 50; // lines of a file in one request
const RETRIES = 20; // of a request that the server is too busy for
const SPACE = /([\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+)/; // separates words

const element = (id) => document.getElementById(id);
const form = element("form");
const text = element("text");
const output = element("translation");
const maxCharacters = Number(form.dataset.maxCharacters);

let segments = []; // of the shown translation
let models = [];
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

function options() {
  const { source, target } = pair();
  const fitting = models.filter((one) => one.target === target && (source === "auto" || one.source === source));
  return { alignment: fitting.length > 0 && fitting.every((one) => one.alignments), confidence: true };
}

// --- live translation -----------------------------------------------------------------------------------------------

function translateSoon() {
  showCount();
  clearTimeout(timer);
  timer = setTimeout(translate, TYPING_PAUSE);
}

async function translate() {
  clearTimeout(timer);
  if (pending) pending.abort(); // the server stops its search
  const controller = new AbortController();
  pending = controller;
  if (!text.value.trim()) {
    show([], "");
    return;
  }
  output.classList.add("stale");
  element("status").textContent = "Translating …";
  try {
    const answer = await post({ q: text.value, ...pair(), ...options() }, controller.signal);
    if (pending !== controller) return;
    const detected = answer.detectedLanguage;
    show(answer.segments, detected ? `Detected: ${languageName(detected.language)}` : "");
  } catch (problem) {
    if (pending !== controller || problem.name === "AbortError") return;
    element("status").textContent = "";
    showError(problem);
  }
}

function show(found, detected) {
  segments = found;
  element("detected").textContent = detected;
  element("status").textContent = "";
  element("error").textContent = "";
  render();
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

// --- words ----------------------------------------------------------------------------------------------------------

function render() {
  output.classList.remove("stale");
  output.replaceChildren();
  segments.forEach((segment, number) => {
    let index = 0;
    for (const part of segment.target.split(SPACE)) {
      if (part && !SPACE.test(part)) {
        output.append(makeTargetWord(part, number, index));
        index += 1;
      } else {
        output.append(part);
      }
    }
  });
  const words = targetWords();
  if (words.length > 0) words[0].tabIndex = 0;
  element("aligned").hidden = words.length === 0;
  showSource(0);
}

function makeTargetWord(word, segment, index) {
  const span = document.createElement("span");
  span.className = "word";
  span.textContent = word;
  span.tabIndex = -1; // the arrow keys move between words
  Object.assign(span.dataset, { segment, index });
  const probability = (segments[segment].words || [])[index];
  if (probability !== undefined) {
    span.style.setProperty("--uncertainty", String(Math.max(0, Math.min(1, (0.8 - probability) / 0.6))));
    span.title = `probability ${Math.round(100 * probability)} %`;
  }
  return span;
}

const targetWords = () => [...output.querySelectorAll(".word")];

function showSource(number) {
  const line = element("source-words");
  if (line.dataset.shown === String(number) && line.segment === segments[number]) return;
  line.dataset.shown = String(number);
  line.segment = segments[number];
  line.replaceChildren();
  if (!segments[number]) return;
  let index = 0;
  for (const part of segments[number].source.trim().split(SPACE)) {
    if (part && !SPACE.test(part)) {
      const span = document.createElement("span");
      span.className = "word";
      span.textContent = part;
      Object.assign(span.dataset, { segment: number, index });
      line.append(span);
      index += 1;
    } else {
      line.append(part);
    }
  }
}

function link(word) {
  for (const one of document.querySelectorAll(".word.linked")) one.classList.remove("linked");
  if (!word) return;
  const number = Number(word.dataset.segment);
  const index = Number(word.dataset.index);
  const isTarget = output.contains(word);
  if (isTarget) showSource(number);
  word.classList.add("linked");
  for (const [source, target] of (segments[number] && segments[number].alignment) || []) {
    if ((isTarget ? target : source) !== index) continue;
    const others = isTarget ? element("source-words") : output;
    const selector = `.word[data-segment="${number}"][data-index="${isTarget ? source : target}"]`;
    const other = others.querySelector(selector);
    if (other) other.classList.add("linked");
  }
}

const wordOf = (event) => (event.target instanceof Element ? event.target.closest(".word") : null);

function moveFocus(word, step) {
  const words = targetWords();
  const next = words[words.indexOf(word) + step];
  if (!next) return;
  word.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
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
  element("swap").hidden = !models.some((one) => one.source === target && one.target === source);
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
element("shade").addEventListener("change", (event) => output.classList.toggle("shaded", event.target.checked));
element("file").addEventListener("change", (event) => event.target.files[0] && translateFile(event.target.files[0]));
element("cancel").addEventListener("click", () => fileWork && fileWork.abort());
for (const area of [output, element("source-words")]) {
  area.addEventListener("pointerover", (event) => link(wordOf(event)));
  area.addEventListener("pointerleave", () => link(null));
}
output.addEventListener("focusin", (event) => link(wordOf(event)));
output.addEventListener("focusout", () => link(null));
output.addEventListener("keydown", (event) => {
  const word = wordOf(event);
  if (!word) return;
  const isRightToLeft = getComputedStyle(output).direction === "rtl";
  const step = { ArrowRight: isRightToLeft ? -1 : 1, ArrowLeft: isRightToLeft ? 1 : -1 }[event.key];
  if (!step) return;
  moveFocus(word, step);
  event.preventDefault();
});
fetch("models")
  .then((answer) => answer.json())
  .then((found) => {
    models = found;
    showSwap();
    if (text.value.trim()) translate();
  })
  .catch(showError);
showCount();
