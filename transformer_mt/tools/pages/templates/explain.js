"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const make = (tag, text, parent) => {
    const element = document.createElement(tag);
    element.textContent = text;
    parent.append(element);
    return element;
  };
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  const formatProbability = (value) =>
    value >= 0.0005 || !value ? value.toFixed(3) : value.toExponential(0).replace(/-(\d)$/, "-0$1"); // as in the table

  // --- one target piece: its alternatives, and its attention to the source

  let shown = 0;
  const chosen = (select, items) => (select.value === "all" ? items : [items[Number(select.value)]]);
  const weights = (position) => {
    const rows = chosen(find("layer"), data.attention).flatMap((heads) => chosen(find("head"), heads));
    return data.pieces.map((_, i) => mean(rows.map((row) => row[position][i])));
  };
  const sources = data.pieces.map((piece) => {
    const box = make("div", "", find("source"));
    make("code", piece, box);
    make("br", "", box);
    box.className = "shaded";
    return { box, number: make("span", "", box) };
  });
  const show = (position) => {
    shown = position;
    targets.forEach((button, i) => button.setAttribute("aria-pressed", String(i === position)));
    weights(position).forEach((weight, i) => {
      const percent = 100 * weight;
      sources[i].box.style.setProperty("--weight", `${percent}%`);
      sources[i].number.textContent = `${Math.round(percent)} %`;
    });
    const prediction = data.predictions[position];
    const panel = find("choice");
    panel.replaceChildren();
    const probability = formatProbability(prediction.probability);
    make("div", `${prediction.piece}: probability ${probability}, rank ${prediction.rank}, ` +
      `entropy ${prediction.entropy.toFixed(2)} bits`, panel);
    for (const [piece, value] of prediction.alternatives) {
      const line = make("p", "", panel);
      make("code", piece, line);
      make("span", formatProbability(value), line);
      const bar = make("div", "", line);
      bar.className = "bar loss";
      bar.style.width = `${100 * value}%`;
    }
  };
  const targets = data.predictions.map((prediction, position) => {
    const button = make("button", "", find("target"));
    button.type = "button";
    make("code", prediction.piece, button);
    for (const event of ["focus", "pointerenter", "click"]) {
      button.addEventListener(event, () => show(position));
    }
    return button;
  });
  const fill = (select, count) => {
    for (const value of ["all", ...Array(count).keys()]) {
      const option = make("option", value === "all" ? "mean of all" : String(value + 1), select);
      option.value = String(value);
    }
    select.addEventListener("change", () => show(shown));
  };
  fill(find("layer"), data.attention.length);
  fill(find("head"), Math.max(...data.attention.map((heads) => heads.length)));
  find("explorer").hidden = false;
  show(0);
})();
