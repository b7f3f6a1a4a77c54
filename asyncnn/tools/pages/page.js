"use strict";
// Sorting and filtering tables, reading plots, walking graphs. Without it the page
// shows the same, at rest. Strings of the page's data become text, never markup.

const page = JSON.parse(document.getElementById("data").textContent);

function element(tag, text, properties = {}) {
  const made = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) made.textContent = text;
  return made;
}

for (const section of document.querySelectorAll("section[data-part]")) {
  const part = page.parts[section.dataset.part];
  if (part.type === "table") enliven(section, part);
  if (part.type === "graph" && part.nodes.length) explore(section, part);
  for (const plot of section.querySelectorAll(".plot")) read(section, plot);
}

// Tables

function keyOf(cell) {
  if (cell !== null && typeof cell === "object") return cell.value ?? cell.text;
  return cell;
}

const inWords = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  if (typeof one === "number") return -1;
  if (typeof other === "number") return 1;
  return inWords.compare(one, other);
}

function enliven(section, part) {
  const body = section.querySelector("tbody");
  const rows = [...body.rows].map((drawn, place) => ({
    drawn, place, keys: part.rows[place].map(keyOf), text: plain(drawn.textContent),
  }));
  const headings = [...section.querySelectorAll("thead th")];
  headings.forEach((heading, column) => {
    const button = element("button", undefined, { type: "button" });
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(column));
  });

  function sort(column) {
    const before = headings[column].getAttribute("aria-sort");
    const now = { none: "ascending", ascending: "descending", descending: "none" }[before];
    for (const heading of headings) heading.setAttribute("aria-sort", "none");
    headings[column].setAttribute("aria-sort", now);
    const sign = { none: 0, ascending: 1, descending: -1 }[now];
    const isMissing = (row) => row.keys[column] === null;
    rows.sort((one, other) => {
      if (!sign) return one.place - other.place;
      if (isMissing(one) || isMissing(other)) return isMissing(one) - isMissing(other);
      return sign * compare(one.keys[column], other.keys[column]) || one.place - other.place;
    });
    body.append(...rows.map((row) => row.drawn));
  }

  const controls = section.querySelector(".controls");
  const [input, output] = [controls.querySelector("input"), controls.querySelector("output")];
  controls.hidden = rows.length < 2;
  input.addEventListener("input", () => {
    const words = plain(input.value).split(" ").filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.drawn.hidden = !words.every((word) => row.text.includes(word));
      shown += !row.drawn.hidden;
    }
    output.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });
}

// Narrow spaces stand between thousands; nobody types them.
function plain(text) {
  return text.replaceAll("\u202f", "").trim().toLowerCase();
}

// Plots

function read(section, plot) {
  const { stops, series } = JSON.parse(plot.querySelector(".stops").textContent);
  const area = plot.querySelector(".area");
  const [guide, tip] = [area.querySelector(".guide"), area.querySelector(".tip")];
  const across = plot.dataset.along === "x";
  const keys = series.map((_, place) => section.querySelector(
    `.legend [data-series="${place}"] .key`).className);
  const dots = keys.map((key) => {
    const dot = element("i", undefined, { className: key.replace("key", "dot"), hidden: true });
    area.append(dot);
    return dot;
  });
  let current = null;

  function show(number) {
    current = number;
    const stop = stops[number];
    guide.hidden = tip.hidden = false;
    guide.style[across ? "left" : "top"] = `${stop.at}%`;
    tip.replaceChildren(element("b", stop.label), ...series.map((name, place) => {
      const line = element("div");
      const left = element("span");
      left.append(element("span", undefined, { className: keys[place] }), name);
      line.append(left, element("span", stop.texts[place]));
      return line;
    }));
    dots.forEach((dot, place) => {
      const mark = stop.marks[place];
      dot.hidden = mark === null;
      dot.style.left = `${across ? stop.at : mark}%`;
      dot.style.top = `${across ? mark : stop.at}%`;
    });
  }

  function put(x, y) {
    const far = area.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(Math.min(0, far), x + tip.offsetWidth + 24 > area.clientWidth
      ? x - tip.offsetWidth - 14 : x + 14)}px`;
    const low = area.clientHeight - tip.offsetHeight;
    tip.style.top = `${Math.max(0, Math.min(low, y - tip.offsetHeight / 2))}px`;
  }

  function hide() {
    guide.hidden = tip.hidden = true;
    for (const dot of dots) dot.hidden = true;
    current = null;
  }

  function point(event) {
    const box = area.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const at = 100 * (across ? x / box.width : y / box.height);
    let near = 0;
    stops.forEach((stop, number) => {
      if (Math.abs(stop.at - at) < Math.abs(stops[near].at - at)) near = number;
    });
    show(near);
    put(x, y);
  }

  area.addEventListener("pointermove", point);
  area.addEventListener("pointerdown", point);
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return hide();
    if (!step) return;
    event.preventDefault();
    const next = current === null ? Math.floor(stops.length / 2) : current + step;
    show(Math.max(0, Math.min(stops.length - 1, next)));
    const at = stops[current].at / 100;
    put(across ? at * area.clientWidth : area.clientWidth / 2,
      across ? area.clientHeight / 2 : at * area.clientHeight);
  });

  for (const entry of section.querySelectorAll(".legend [data-series]")) {
    const pick = (on) => {
      plot.classList.toggle("picked", on);
      for (const line of plot.querySelectorAll(".line"))
        line.classList.toggle("chosen", on && line.dataset.series === entry.dataset.series);
    };
    entry.addEventListener("pointerenter", () => pick(true));
    entry.addEventListener("pointerleave", () => pick(false));
  }
}

// Graphs

function explore(section, part) {
  const canvas = section.querySelector(".canvas");
  const svg = canvas.querySelector("svg");
  const panel = section.querySelector("aside");
  const controls = section.querySelector(".controls");
  const [width, height] = [svg.width.baseVal.value, svg.height.baseVal.value];
  const drawn = [];
  for (const node of svg.querySelectorAll(".node")) drawn[node.dataset.node] = node;
  const edges = [...svg.querySelectorAll(".edge")].map((path) => ({
    path, from: Number(path.dataset.from), to: Number(path.dataset.to),
    label: part.edges[path.dataset.edge][2],
  }));
  const inOrder = [...svg.querySelectorAll(".node")].map((node) => Number(node.dataset.node));
  let chosen = null;
  let zoom = 1;

  function choose(number, isFocused = true) {
    if (chosen !== null) drawn[chosen].classList.remove("chosen");
    chosen = number;
    drawn[number].classList.add("chosen");
    for (const { path, from, to } of edges) {
      path.classList.toggle("near", from === number || to === number);
      if (from === number || to === number) path.parentNode.append(path);
    }
    describe(number);
    if (isFocused) drawn[number].focus({ preventScroll: true });
    reveal(drawn[number]);
  }

  function describe(number) {
    const node = part.nodes[number];
    const list = element("dl");
    const add = (name, ...values) => list.append(element("dt", name), ...values);
    if (node.share) add("share", element("dd", `${(100 * node.share).toPrecision(3)} %`));
    if (node.group) add("group", element("dd", node.group));
    for (const [name, value] of Object.entries(node.details ?? {}))
      add(name, element("dd", value));
    for (const [name, here, there] of [["from", "to", "from"], ["to", "from", "to"]]) {
      const links = edges.filter((edge) => edge[here] === number).map((edge) => {
        const other = part.nodes[edge[there]];
        const title = (other.label || other.name).split("\n")[0];
        const link = element("button", edge.label ? `${title} (${edge.label})` : title,
          { type: "button" });
        link.addEventListener("click", () => choose(edge[there]));
        const item = element("dd");
        item.append(link);
        return item;
      });
      if (links.length) add(name, ...links);
    }
    panel.replaceChildren(element("h3", node.label || node.name), list);
  }

  // Only the box scrolls, not the page that it stands in.
  function reveal(node) {
    const [box, here] = [canvas.getBoundingClientRect(), node.getBoundingClientRect()];
    if (here.left < box.left || here.right > box.right)
      canvas.scrollLeft += here.left + here.width / 2 - box.left - box.width / 2;
    if (here.top < box.top || here.bottom > box.bottom)
      canvas.scrollTop += here.top + here.height / 2 - box.top - box.height / 2;
  }

  function zoomTo(next, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    next = Math.max(0.08, Math.min(3, next));
    const [left, top] = [(canvas.scrollLeft + x) / zoom, (canvas.scrollTop + y) / zoom];
    zoom = next;
    svg.setAttribute("width", width * zoom);
    svg.setAttribute("height", height * zoom);
    canvas.scrollLeft = left * zoom - x;
    canvas.scrollTop = top * zoom - y;
  }

  function fit() {
    zoomTo(Math.min(1, canvas.clientWidth / width, canvas.clientHeight / height));
  }

  controls.hidden = false;
  const actions = { in: () => zoomTo(zoom * 1.3), out: () => zoomTo(zoom / 1.3), fit };
  for (const button of controls.querySelectorAll("button"))
    button.addEventListener("click", actions[button.dataset.zoom]);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoomTo(zoom * Math.exp(-event.deltaY / 300), event.clientX - box.left,
      event.clientY - box.top);
  }, { passive: false });

  // A mouse drags the box; fingers scroll it by themselves.
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    held = { x: event.clientX, y: event.clientY, moved: false };
  });
  addEventListener("pointermove", (event) => {
    if (held === null) return;
    const [x, y] = [event.clientX - held.x, event.clientY - held.y];
    if (!held.moved && Math.hypot(x, y) < 4) return;
    canvas.classList.add("held");
    canvas.scrollLeft -= x;
    canvas.scrollTop -= y;
    held = { x: event.clientX, y: event.clientY, moved: true };
  });
  addEventListener("pointerup", () => {
    canvas.classList.remove("held");
    if (held?.moved) addEventListener("click", (event) => event.stopPropagation(),
      { capture: true, once: true });
    held = null;
  });

  svg.addEventListener("click", (event) => {
    const node = event.target.closest(".node");
    if (node) choose(Number(node.dataset.node));
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.target === canvas && event.key === "Enter") return choose(inOrder[0]);
    if (event.key === "+" || event.key === "-") return actions[event.key === "+" ? "in" : "out"]();
    if (chosen === null || event.target === canvas) return;
    const beside = (step) => inOrder[inOrder.indexOf(chosen) + step];
    const next = {
      ArrowDown: () => edges.find((edge) => edge.from === chosen)?.to,
      ArrowUp: () => edges.find((edge) => edge.to === chosen)?.from,
      ArrowRight: () => beside(1), ArrowLeft: () => beside(-1),
    }[event.key]?.();
    if (next === undefined) return;
    event.preventDefault();
    choose(next);
  });
  drawn[inOrder[0]].setAttribute("tabindex", "0");

  const [input, output] = [controls.querySelector("input"), controls.querySelector("output")];
  const texts = part.nodes.map((node) => plain(
    [node.name, node.label, node.group, ...Object.values(node.details ?? {})].join(" ")));
  let found = [];
  input.addEventListener("input", () => {
    const word = plain(input.value);
    found = word ? inOrder.filter((number) => texts[number].includes(word)) : [];
    svg.classList.toggle("searched", Boolean(word));
    for (const number of inOrder) drawn[number].classList.toggle("found", found.includes(number));
    output.textContent = word ? `${found.length} of ${inOrder.length}` : "";
    if (found.length) reveal(drawn[found[0]]);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.length) return;
    choose(found[(found.indexOf(chosen) + 1) % found.length], false);
  });

  // What is wider than the box is drawn smaller, but never too small to read.
  zoomTo(Math.min(1, Math.max(0.55, canvas.clientWidth / width)));
  const [box, top] = [canvas.getBoundingClientRect(), drawn[inOrder[0]].getBoundingClientRect()];
  canvas.scrollLeft += top.left + top.width / 2 - box.left - box.width / 2;
}
