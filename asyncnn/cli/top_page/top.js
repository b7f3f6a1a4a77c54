// Fetches what asyncnn top sees, again and again, and shows it.

import { Plot, element } from "./plots.js";

const POINTS = 120;
const TIMEOUT_MS = 8000;
const AFTER_FAILURE_MS = 2000;
const NONE = "\u2013";

const byId = (id) => document.getElementById(id);

const count = (value) => value.toLocaleString("en");

function rate(value) {
  if (value === null) return NONE;
  return value < 100 ? value.toFixed(1) : count(Math.round(value));
}

function duration(us) {
  if (us === null) return NONE;
  const [value, unit] =
    us >= 1e6 ? [us / 1e6, "s"] : us >= 1e3 ? [us / 1e3, "ms"] : [us, "\u00b5s"];
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

function bytes(value) {
  if (value === null) return NONE;
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

function seconds(value) {
  if (value < 90) return `${Math.round(value)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

const plots = [
  new Plot({ title: "Executions per second", pick: (p) => p.per_s, show: rate }),
  new Plot({
    title: "Latency",
    names: ["p50", "p99"],
    pick: (p) => p.p50_us,
    second: (p) => p.p99_us,
    show: duration,
    logarithmic: true,
  }),
  new Plot({
    title: "Queued and running",
    pick: (p) => p.pending,
    show: (value) => (value === null ? NONE : count(value)),
  }),
  new Plot({ title: "Memory", pick: (p) => p.resident_bytes, show: bytes }),
];

byId("cards").append(...plots.map((plot) => plot.figure));

// What the columns of work are called, what is in them and how that is written.
const WORK = [
  ["queued", (row) => row.work.queued, count],
  ["running", (row) => row.work.running, count],
  ["per s", (row) => row.work.per_s, rate],
  ["p50", (row) => row.work.p50_us, duration],
  ["p90", (row) => row.work.p90_us, duration],
  ["p99", (row) => row.work.p99_us, duration],
  ["done", (row) => row.work.succeeded, count],
  ["failed", (row) => row.work.failed, count, "bad"],
  ["missed", (row) => row.work.deadline_misses, count, "bad"],
  ["preempted", (row) => row.work.preemptions, count],
];

// A table whose rows stay where they are while their figures change.
class Table {
  constructor(table, columns, sortedBy) {
    this.columns = columns;
    this.sortedBy = sortedBy;
    this.isDescending = true;
    this.rows = new Map();
    this.body = element("tbody");
    this.headings = columns.map(([name], place) => this.heading(name, place));
    const row = element("tr");
    row.append(...this.headings);
    const head = element("thead");
    head.append(row);
    table.append(head, this.body);
  }

  heading(name, place) {
    const cell = element("th");
    cell.scope = "col";
    if (this.sortedBy === undefined) {
      cell.textContent = name;
      return cell;
    }
    const button = element("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => {
      this.isDescending = this.sortedBy === place ? !this.isDescending : place !== 0;
      this.sortedBy = place;
      this.show(this.shown);
    });
    cell.append(button);
    return cell;
  }

  show(rows) {
    this.shown = rows;
    const ordered = this.sortedBy === undefined ? rows : this.sorted(rows);
    const seen = new Set(ordered.map((row) => row.key));
    for (const [key, made] of this.rows) {
      if (!seen.has(key)) {
        made.remove();
        this.rows.delete(key);
      }
    }
    ordered.forEach((row, place) => {
      const made = this.rows.get(row.key) ?? this.added(row.key);
      this.columns.forEach((column, n) => fill(made.cells[n], row, column));
      // Moved only if it has to be, so that text that is selected stays selected.
      const there = this.body.children[place];
      if (there !== made) this.body.insertBefore(made, there ?? null);
    });
  }

  added(key) {
    const made = element("tr");
    made.append(...this.columns.map(() => element("td")));
    this.rows.set(key, made);
    return made;
  }

  sorted(rows) {
    this.headings.forEach((cell, place) => {
      if (place !== this.sortedBy) cell.removeAttribute("aria-sort");
      else cell.ariaSort = this.isDescending ? "descending" : "ascending";
    });
    // Labels begin with the number, which is what they are sorted by.
    const value = this.sortedBy ? this.columns[this.sortedBy][1] : (row) => row.number;
    const sign = this.isDescending ? -1 : 1;
    return [...rows].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === b) return one.number - other.number;
      if (a === null || b === null) return a === null ? 1 : -1;
      return (a < b ? -1 : 1) * sign;
    });
  }
}

function fill(cell, row, [, pick, show, warning]) {
  const value = pick(row);
  const text = show ? show(value) : String(value);
  if (cell.textContent !== text) cell.textContent = text;
  cell.className = warning && value ? warning : value === 0 || text === NONE ? "none" : "";
  if (cell.cellIndex === 0) cell.title = text;
}

const DONE = 1 + WORK.findIndex(([name]) => name === "done");

const work = new Table(byId("work"), [["", (row) => row.name], ...WORK]);
const clients = new Table(
  byId("clients"),
  [
    ["client", (row) => row.label],
    ...WORK,
    ["weight", (row) => row.weight],
    ["buffers", (row) => row.buffer_bytes, bytes],
  ],
  DONE,
);
const models = new Table(
  byId("models"),
  [
    ["model", (row) => row.label],
    ...WORK,
    ["client", (row) => row.client],
    ["priority", (row) => row.priority],
    ["idle", (row) => row.idle_bytes, bytes],
  ],
  DONE,
);

function note(id, text) {
  byId(id).hidden = !text;
  byId(id).textContent = text;
}

function show(report) {
  const { device } = report;
  const isGone = report.gone_s !== null;
  document.body.classList.toggle("gone", isGone);
  state(
    isGone ? "gone" : "there",
    isGone ? "no driver" : report.drivers > 1 ? `driver ${report.drivers}` : "live",
  );
  note(
    "banner",
    isGone
      ? `No driver for ${seconds(report.gone_s)}: ${report.reason}. ` +
          "The figures are the last ones; the page goes on when a driver is back."
      : "",
  );
  byId("socket").textContent = `Socket: ${report.socket}`;
  plots.forEach((plot) => plot.draw(report.points, report.interval_s, POINTS));
  if (!device) return;
  document.title = `${isGone ? "gone" : `${rate(device.executions.per_s)}/s`} \u00b7 asyncnn top`;
  const threads = device.threads === 1 ? "1 thread" : `${device.threads} threads`;
  byId("device").textContent =
    `${device.name}, ${threads}, ${bytes(device.buffer_bytes)} in buffers`;
  work.show([
    { key: "executions", name: "executions", work: device.executions },
    { key: "preparations", name: "preparations", work: device.preparations },
  ]);
  const failures = Object.entries(device.executions.failures);
  const failed = failures.map(([status, number]) => `${status} ${count(number)}`);
  note("failures", failed.length ? `Executions that failed: ${failed.join(", ")}` : "");
  showRows(clients, "clients", device, (each) => `${each.number}: ${each.name}`);
  showRows(models, "models", device, (each) => `${each.number}: ${each.operations} operations`);
}

function showRows(table, what, device, label) {
  const rows = device[what].map((each) => ({
    ...each,
    key: each.number,
    label: label(each),
    work: each.executions,
  }));
  table.show(rows);
  const left = device[`${what}_left`];
  byId(`${what}-count`).textContent = count(rows.length + left);
  note(`${what}-left`, left ? `and ${count(left)} more that did less lately` : "");
}

function state(kind, text) {
  const shown = byId("state");
  shown.className = `state ${kind}`;
  if (shown.textContent !== text) shown.textContent = text;
}

async function look() {
  let pause = AFTER_FAILURE_MS;
  try {
    const answer = await fetch("live.json", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (answer.ok) {
      const report = await answer.json();
      show(report);
      pause = Math.max(report.interval_s * 1000, 100);
    } else {
      lost("Another asyncnn top is at this port now. Open the address that it has printed.");
    }
  } catch (error) {
    if (error instanceof TypeError || error.name === "TimeoutError") {
      lost("asyncnn top does not answer. It may have ended; the figures are its last ones.");
    } else {
      throw error;
    }
  } finally {
    setTimeout(look, pause);
  }
}

function lost(text) {
  document.body.classList.add("gone");
  state("gone", "no answer");
  note("banner", text);
}

look();
