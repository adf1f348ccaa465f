// Script of index.html in an exported ONNX folder: the page, and the worker in which the model translates greedily.
// Text enters the page as text nodes only, so that it can never become HTML.

const TYPING_PAUSE = 300; // milliseconds without a key before the text is translated
const FILES = ["config.json", "export.json", "src_tokenizer.json", "tgt_tokenizer.json", "encoder.onnx", "decoder.onnx"];
const WASM = "lib/ort-wasm-simd-threaded.wasm";

// --- page -----------------------------------------------------------------------------------------------------------

function runPage() {
  const [status, progress, text, output, tag] = ["status", "progress", "text", "translation", "tag"].map((id) =>
    document.getElementById(id),
  );
  const worker = new Worker(import.meta.url, { type: "module" });
  let timer = 0;
  let newest = 0; // number of the last text
  let start = 0;
  let isReady = false;
  progress.hidden = false;
  status.textContent = "Loading the model …";

  function sendText() {
    if (!isReady) return;
    newest += 1;
    start = performance.now();
    worker.postMessage({ number: newest, text: text.value, tag: tag ? tag.value : "" });
  }

  function fail(message) {
    progress.hidden = true;
    status.className = "error";
    status.textContent = message;
  }

  worker.onerror = (event) => fail(`The script fails: ${event.message || "the browser does not support it"}`);
  worker.onmessage = ({ data }) => {
    if (data.error) fail(data.error);
    if (data.loaded !== undefined) progress.value = data.loaded;
    if (data.isReady) {
      isReady = true;
      progress.hidden = true;
      status.textContent = "Ready. The text stays on this device.";
      if (text.value) sendText();
    }
    if (data.number !== newest) return;
    status.className = "dim";
    output.textContent = data.translation;
    const seconds = ((performance.now() - start) / 1000).toFixed(2);
    const cut = data.isCut ? " A long sentence was cut." : "";
    status.textContent = data.isDone ? `Translated on this device in ${seconds} s.${cut}` : "Translating …";
  };
  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(sendText, TYPING_PAUSE);
  });
  if (tag) tag.addEventListener("change", sendText);
}

// --- worker ---------------------------------------------------------------------------------------------------------

let ort, config, metadata, source, target, encoder, decoder;
let request = null; // the newest text
let isWorking = false;

async function load() {
  const responses = await Promise.all([...FILES, WASM].map((name) => fetch(name)));
  const missing = responses.find((response) => !response.ok);
  if (missing) throw new Error(`${missing.url}: status ${missing.status}`);
  const total = responses.reduce((sum, response) => sum + Number(response.headers.get("Content-Length")), 0);
  let loaded = 0;

  async function read(response) {
    const chunks = [];
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      chunks.push(part.value);
      loaded += part.value.length;
      if (total) postMessage({ loaded: Math.min(1, loaded / total) }); // a compressed response has more bytes than it says
    }
    return new Blob(chunks).arrayBuffer();
  }

  const contents = await Promise.all(responses.map(read));
  const [settings, exported, src, tgt] = contents.slice(0, 4).map((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
  const { Tokenizer } = await import("./lib/tokenizers.min.mjs");
  ort = await import("./lib/ort.wasm.bundle.min.mjs");
  ort.env.wasm.wasmBinary = contents[6];
  ort.env.wasm.numThreads = 1; // several need headers that a plain server does not send
  [config, metadata] = [settings, exported];
  [source, target] = [src, tgt].map((content) => new Tokenizer(content, {}));
  encoder = await ort.InferenceSession.create(contents[4]);
  decoder = await ort.InferenceSession.create(contents[5]);
}

/** Return a code of a language that the functions of the browser know, or undefined. */
function locale(code) {
  try {
    return Intl.getCanonicalLocales(code.replaceAll("_", "-"))[0];
  } catch {
    return undefined;
  }
}

const encode = (text) => source.encode(text, { add_special_tokens: false }).ids;
const integers = (ids) => new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);

/** Let messages of the page arrive. */
function pause() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => (port1.close(), resolve());
    port2.postMessage(null);
  });
}

/** Return the ids of a translation, which starts with those of a tag, or null if there is a newer text. */
async function search(ids, tag, number) {
  const { decoding, positions } = metadata;
  const eos = config.tgt_ids["</s>"];
  const length = Math.trunc(decoding.max_length_factor * ids.length) + decoding.max_length_offset;
  const limit = Math.min(Math.max(length, decoding.min_length + 1) + tag.length, positions);
  const src = integers([...config.source_start, ...ids, ...config.source_end]);
  const { memory } = await encoder.run({ src });
  let cache = new ort.Tensor("float32", new Float32Array(0), [config.n_layers, 2, 1, config.n_kv_heads, 0, config.d_head]);
  const tokens = [config.tgt_ids["<s>"], ...tag];
  for (let position = 0; tokens.length <= limit; position += 1) {
    const { logits, extended_cache: longer } = await decoder.run({ tokens: integers([tokens[position]]), src, memory, cache });
    cache = longer;
    if (position + 1 < tokens.length) continue; // the tag
    if (tokens.length <= decoding.min_length + tag.length) logits.data[eos] = -Infinity;
    const best = logits.data.reduce((first, value, id, values) => (value > values[first] ? id : first), 0);
    if (best === eos) break;
    tokens.push(best);
    await pause();
    if (request.number !== number) return null;
  }
  return tokens.slice(1).filter((id) => id < config.tgt_ids["<pad>"]);
}

/** Divide a line into sentences, if it is longer than most sources of the training. */
function splitSentences(line, language) {
  const { lengths } = metadata.data;
  const sentences = [...new Intl.Segmenter(locale(language), { granularity: "sentence" }).segment(line)];
  const longest = Math.min(metadata.longest_source, lengths ? lengths.tokens.p95 : Infinity);
  const isShort = sentences.length <= (lengths ? lengths.sentences.p95 : 1) && encode(line).length <= longest;
  return isShort ? [line] : sentences.map((one) => one.segment);
}

/** Translate a sentence. One in capitals is translated in sentence case, if that has a lower token cost. */
async function translateSentence(sentence, [srcTag, tgtTag], [srcLang, tgtLang], number) {
  if (!/\p{L}/u.test(sentence)) return { text: sentence };
  let ids = encode(sentence);
  let isUpper = metadata.decoding.restore_case && /\p{Lu}.*\p{Lu}/su.test(sentence) && !/\p{Ll}/u.test(sentence);
  if (isUpper) {
    const lower = sentence.toLocaleLowerCase(locale(srcLang));
    const changed = encode(lower.replace(/\p{L}/u, (letter) => letter.toLocaleUpperCase(locale(srcLang))));
    const cost = (found) => found.length + found.filter((id) => id === metadata.src_unk_id).length;
    isUpper = cost(changed) < cost(ids);
    if (isUpper) ids = changed;
  }
  const isCut = ids.length > metadata.longest_source;
  const found = await search([...srcTag, ...ids.slice(0, metadata.longest_source)], tgtTag, number);
  if (!found) return null;
  const options = { skip_special_tokens: false, clean_up_tokenization_spaces: false };
  const decoded = found.length ? target.decode(found, options).trimEnd() : "";
  const text = decoded.replace(/^(?:\ufffd+\s+)+|\s+\ufffd+(?!\S)|\ufffd/g, ""); // bytes that are no UTF-8
  return { text: isUpper ? text.toLocaleUpperCase(locale(tgtLang)) : text, isCut };
}

async function translate(current) {
  const [srcSymbol, tgtSymbol] = current.tag.split(":");
  const tag = [
    srcSymbol ? [config.src_ids[`<${srcSymbol}>`]] : [],
    tgtSymbol ? [config.tgt_ids[`<${tgtSymbol}>`]] : [],
  ];
  const languages = metadata.languages.map(
    (codes, side) => codes[[srcSymbol, tgtSymbol][side] || srcSymbol || tgtSymbol] ?? codes[""],
  );
  let translation = "";
  let isCut = false;
  for (const part of current.text.split(/([\r\n\t]+)/)) {
    for (const sentence of part.trim() ? splitSentences(part.trim(), languages[0]) : [part]) {
      const end = sentence.trimEnd().length;
      const found = await translateSentence(sentence.slice(0, end), tag, languages, current.number);
      if (!found) return;
      translation += found.text + sentence.slice(end);
      isCut ||= Boolean(found.isCut);
      postMessage({ number: current.number, translation });
    }
  }
  postMessage({ number: current.number, translation, isCut, isDone: true });
}

async function processRequests() {
  isWorking = true;
  for (let current = null; current !== request; ) {
    current = request;
    await translate(current).catch((error) => postMessage({ error: `The model fails: ${error.message}` }));
  }
  isWorking = false;
}

function runWorker() {
  onmessage = ({ data }) => {
    request = data;
    if (!isWorking) processRequests();
  };
  load().then(
    () => postMessage({ isReady: true }),
    (error) => postMessage({ error: `The model cannot be loaded: ${error.message}` }),
  );
}

if (typeof document === "undefined") runWorker();
else runPage();
