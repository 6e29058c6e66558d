"use strict";
// Text is only ever set through textContent: nothing that comes from data is read as HTML.

function sortable(table) {
  const body = table.tBodies[0];
  const heads = Array.from(table.tHead.rows[0].cells);
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const rows = Array.from(body.rows).sort((a, b) => {
      const x = key(a, column), y = key(b, column);
      if (x === null || y === null) return (x === null) - (y === null);  // not measured: last, either way
      return direction * (typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true }));
    });
    body.append(...rows);
  }));
}

function filterable(table) {
  const words = document.getElementById("run-filter");
  const choices = Array.from(document.querySelectorAll(".run-choice"));
  const count = document.getElementById("run-count");
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const fits = wanted.every((word) => text.includes(word))
        && choices.every((choice) => !choice.value || row.cells[choice.dataset.column].textContent === choice.value);
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} runs`;
  };
  words.addEventListener("input", apply);
  choices.forEach((choice) => choice.addEventListener("change", apply));
}

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function fill(select, values, label) {
  const before = select.value;
  select.replaceChildren(...values.map((value, index) => {
    const option = element("option", label ? label(value, index) : value);
    option.value = label ? index : value;
    return option;
  }));
  if (Array.from(select.options).some((option) => option.value === before)) select.value = before;
}

const unique = (values) => Array.from(new Set(values));

function reader(data) {
  const slider = document.getElementById("step"), shownStep = document.getElementById("step-shown");
  const member = document.getElementById("member");
  const panes = Array.from(document.querySelectorAll(".pane"));
  const part = (pane, name) => pane.querySelector("." + name);
  const runOf = (pane) => data.runs[Number(part(pane, "run").value)];
  let steps = [];

  // The last evaluation up to the slider's step: two runs need not have been evaluated at the same steps.
  function current(pane) {
    const with_ = runOf(pane).dialogues.filter((d) => d.simulator === part(pane, "simulator").value);
    const at = Math.max(...with_.map((d) => d.step).filter((step) => step <= steps[slider.value]));
    return with_.filter((d) => d.step === at)[Number(member.value)];
  }

  function lines(pane) {
    const dialogue = current(pane), list = part(pane, "lines"), reward = part(pane, "reward");
    if (!dialogue) {
      reward.textContent = "no such dialogue yet";
      list.replaceChildren();
      return;
    }
    const sentences = data.sentences[runOf(pane).world];
    const item = (kind, act) => {
      const words = Object.hasOwn(sentences, act) ? sentences[act] : act;
      const made = element("li", words, kind);
      if (words !== act) made.append(element("small", `${kind}: ${act}`));
      return made;
    };
    reward.textContent = `step ${dialogue.step}, reward ${dialogue.reward.toFixed(2)}`;
    list.replaceChildren(
      ...dialogue.acts.flatMap((act, turn) => {
        const reply = dialogue.replies[turn];  // whoever ends a dialogue leaves the other one without a last word
        return reply === undefined ? [item("policy", act)] : [item("policy", act), item("simulator", reply)];
      }),
      item("outcome", dialogue.outcome));
  }

  function draw() {
    shownStep.textContent = `step ${steps[slider.value]}`;
    panes.forEach(lines);
  }

  function choose() {
    panes.forEach((pane) => fill(part(pane, "simulator"), unique(runOf(pane).dialogues.map((d) => d.simulator))));
    const before = steps[slider.value];
    steps = unique(panes.flatMap((pane) => runOf(pane).dialogues.map((d) => d.step))).sort((a, b) => a - b);
    slider.max = steps.length - 1;
    slider.value = before === undefined ? steps.length - 1 : Math.max(0, steps.findLastIndex((step) => step <= before));
    const most = Math.max(...panes.flatMap((pane) => runOf(pane).dialogues.map((d) => d.member))) + 1;
    fill(member, Array.from({ length: most }), (_, index) => String(index + 1));
    draw();
  }

  panes.forEach((pane, side) => {
    fill(part(pane, "run"), data.runs, (run) => run.label);
    part(pane, "run").value = Math.min(side, data.runs.length - 1);
    part(pane, "run").addEventListener("change", choose);
    part(pane, "simulator").addEventListener("change", draw);
  });
  slider.addEventListener("input", draw);
  member.addEventListener("change", draw);
  choose();
}

const runs = document.getElementById("run-table");
if (runs) {
  sortable(runs);
  filterable(runs);
}
const data = document.getElementById("data");
if (data) reader(JSON.parse(data.textContent));
