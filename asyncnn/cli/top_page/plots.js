// Plots of the last looks. All text goes into the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240;
const HEIGHT = 72;
const MARGIN = 4; // above the highest point, and below the lowest

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// One path through the values, interrupted where there is none.
function line(values, x, y) {
  let path = "";
  let isDown = false;
  values.forEach((value, place) => {
    if (value === null) {
      isDown = false;
      return;
    }
    path += `${isDown ? "L" : "M"}${x(place).toFixed(1)},${y(value).toFixed(1)}`;
    isDown = true;
  });
  return path;
}

// Each stretch of values, closed along the bottom.
function below(values, x, y) {
  let path = "";
  let start = -1;
  for (let place = 0; place <= values.length; place++) {
    const there = place < values.length && values[place] !== null;
    if (there && start < 0) start = place;
    if (!there && start >= 0) {
      const stretch = values.map((value, n) => (n < start || n >= place ? null : value));
      path += `${line(stretch, x, y)}L${x(place - 1).toFixed(1)},${HEIGHT}`;
      path += `L${x(start).toFixed(1)},${HEIGHT}Z`;
      start = -1;
    }
  }
  return path;
}

// A card: what it is called, its present value, and how it got there.
export class Plot {
  constructor({ title, pick, second, show, names, logarithmic = false }) {
    Object.assign(this, { title, pick, second, show, logarithmic });
    this.figure = element("figure", "card");
    const caption = element("figcaption");
    caption.append(element("span", "", title));
    if (names) {
      const both = element("span", "names");
      both.append(element("span", "first", names[0]), " ");
      both.append(element("span", "second", names[1]));
      caption.append(both);
    }
    this.now = element("div", "now");
    this.svg = shape("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
    });
    this.ends = element("div", "ends");
    this.figure.append(caption, this.now, this.svg, this.ends);
  }

  draw(points, intervalS, size) {
    const first = points.map(this.pick);
    const second = this.second ? points.map(this.second) : [];
    const all = [...first, ...second].filter((value) => value !== null);
    const last = points.length ? first[points.length - 1] : null;
    this.now.replaceChildren(element("span", "", this.show(last)));
    if (this.second) {
      const more = points.length ? second[points.length - 1] : null;
      this.now.append(" ", element("span", "second", this.show(more)));
    }
    const most = all.length ? Math.max(...all) : 0;
    const least = all.length ? Math.min(...all) : 0;
    this.svg.setAttribute("aria-label", `${this.title}: ${this.now.textContent}`);
    // The newest look is at the right end, also while there are few.
    const step = WIDTH / (size - 1);
    const x = (place) => WIDTH - (points.length - 1 - place) * step;
    const y = this.scale(least, most);
    this.svg.replaceChildren(
      shape("line", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
      shape("path", { class: "below", d: this.second ? "" : below(first, x, y) }),
      shape("path", { class: "first", d: line(first, x, y) }),
      shape("path", { class: "second", d: line(second, x, y) }),
    );
    const span = (size - 1) * intervalS;
    const ago = span >= 120 ? `${Math.round(span / 60)} min ago` : `${Math.round(span)} s ago`;
    this.ends.replaceChildren(
      element("span", "", ago),
      element("span", "", all.length ? `up to ${this.show(most)}` : ""),
      element("span", "", "now"),
    );
  }

  // Return the height of a value: from 0 upward, or by its logarithm.
  scale(least, most) {
    const room = HEIGHT - 2 * MARGIN;
    if (!this.logarithmic) {
      return (value) => HEIGHT - MARGIN - (most ? value / most : 0) * room;
    }
    const low = Math.log(Math.max(least, 0.5) / 2);
    const high = Math.log(Math.max(most, 1));
    return (value) => {
      const share = (Math.log(Math.max(value, 0.5)) - low) / (high - low);
      return HEIGHT - MARGIN - share * room;
    };
  }
}
