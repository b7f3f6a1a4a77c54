// A field to draw on, and what the application says of the drawing.

import { Drawing, GREYS, SIDE } from "./drawing.js";

const PAUSE_MS = 150; // after a stroke, before it is sent: another may follow
const STEP = 1 / 16; // of the field, for a press of an arrow key
const ARROWS = {
  ArrowLeft: [-STEP, 0],
  ArrowRight: [STEP, 0],
  ArrowUp: [0, -STEP],
  ArrowDown: [0, STEP],
};

const byId = (id) => document.getElementById(id);
const paper = byId("paper");
const drawing = new Drawing(paper);

let timer = 0;
let asked = 0; // questions so far: an answer to another than the last is late
let pointer = null; // the one that draws
let pen = { x: 0.5, y: 0.25, isDown: false }; // that of the keyboard

function place(event) {
  const field = paper.getBoundingClientRect();
  const within = (value) => Math.min(Math.max(value, 0), 1);
  return [
    within((event.clientX - field.left) / field.width),
    within((event.clientY - field.top) / field.height),
  ];
}

paper.addEventListener("pointerdown", (event) => {
  if (pointer !== null || event.button !== 0) return;
  hidePen();
  pointer = event.pointerId;
  paper.setPointerCapture(pointer); // strokes may leave the field
  drawing.begin(...place(event));
});
paper.addEventListener("pointermove", (event) => {
  if (event.pointerId !== pointer) return;
  const all = event.getCoalescedEvents?.() ?? [];
  for (const each of all.length ? all : [event]) drawing.extend(...place(each));
});
for (const end of ["pointerup", "pointercancel"]) {
  paper.addEventListener(end, (event) => {
    if (event.pointerId !== pointer) return;
    pointer = null;
    askSoon();
  });
}

paper.addEventListener("keydown", (event) => {
  const step = ARROWS[event.key];
  if (step) movePen(...step);
  else if (event.key === " ") turnPen();
  else if (event.key === "Delete" || event.key === "Backspace") clear();
  else return;
  event.preventDefault(); // the page is not to scroll
});
paper.addEventListener("focus", () => {
  if (paper.matches(":focus-visible")) showPen(); // not where a mouse draws
});
paper.addEventListener("blur", hidePen);
byId("clear").addEventListener("click", clear);

function movePen(dx, dy) {
  pen.x = Math.min(Math.max(pen.x + dx, 0), 1);
  pen.y = Math.min(Math.max(pen.y + dy, 0), 1);
  if (pen.isDown) {
    drawing.extend(pen.x, pen.y);
    askSoon();
  }
  showPen();
}

function turnPen() {
  pen.isDown = !pen.isDown;
  if (pen.isDown) drawing.begin(pen.x, pen.y);
  askSoon();
  showPen();
}

function showPen() {
  drawing.showPen(pen);
  const [column, row] = [pen.x, pen.y].map((value) => Math.round(value / STEP));
  byId("pen").textContent =
    `Pen ${pen.isDown ? "down" : "up"}, column ${column} and row ${row} of 16`;
}

function hidePen() {
  pen.isDown = false;
  drawing.hidePen();
  byId("pen").textContent = "";
}

function clear() {
  asked++;
  clearTimeout(timer);
  pen.isDown = false;
  drawing.clear();
  if (drawing.pen) showPen();
  show(null);
}

function askSoon() {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
}

async function ask() {
  const image = drawing.image();
  if (!image) return;
  showSeen(image);
  const number = ++asked;
  let problem;
  try {
    const answer = await fetch("classify", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(image),
    });
    if (answer.ok) {
      const found = await answer.json();
      if (number === asked) show(found);
      return;
    }
    if (answer.status === 503) {
      problem = "There is no driver at the moment. Asking again.";
      const pause = Number(answer.headers.get("Retry-After")) || 1;
      timer = setTimeout(ask, pause * 1000);
    } else {
      problem = answer.status === 504 ? "The answer took too long." : `Error ${answer.status}.`;
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    problem = "The application does not answer.";
  }
  if (number === asked) tell(problem);
}

function tell(problem) {
  byId("problem").hidden = !problem;
  byId("problem").textContent = problem;
}

const rows = Array.from({ length: 10 }, (_, digit) => {
  const row = byId("probabilities").insertRow();
  const name = document.createElement("th");
  name.scope = "row";
  name.textContent = digit;
  const bar = document.createElement("progress");
  bar.setAttribute("aria-hidden", "true"); // the figure beside it says the same
  bar.value = 0;
  row.append(name);
  row.insertCell().append(bar);
  const share = row.insertCell();
  share.textContent = "\u2013";
  return { row, bar, share };
});

function show(found) {
  tell("");
  byId("answer").textContent = found ? found.digit : "\u2013";
  if (!found) showSeen(null);
  rows.forEach(({ row, bar, share }, digit) => {
    const probability = found ? found.probabilities[digit] : 0;
    row.classList.toggle("most", found?.digit === digit);
    bar.value = probability;
    share.textContent = found ? `${(probability * 100).toFixed(1)} %` : "\u2013";
  });
}

function showSeen(image) {
  const context = byId("seen").getContext("2d");
  const pixels = context.createImageData(SIDE, SIDE);
  pixels.data.fill(255);
  image?.flat().forEach((grey, place) => {
    pixels.data.fill(255 - Math.round((grey / GREYS) * 255), place * 4, place * 4 + 3);
  });
  context.putImageData(pixels, 0, 0);
}

show(null);
