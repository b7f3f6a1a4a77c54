// Strokes on a field, and the image of 8 by 8 grey levels that a model takes.
//
// The model has learned from digits that were cut out, made 32 pixels high, and counted
// in squares of 4 by 4 pixels. A drawing is treated in the same way, wherever and however
// large it is.

export const SIDE = 8;
export const GREYS = 16;

const FINE = 4; // fine pixels in each of the 8, both ways
const FINE_SIDE = SIDE * FINE;
const FINE_PEN = 4.5; // width of a stroke in fine pixels
const WIDEST = 26; // of the 32: digits are higher than wide
const PEN = 0.07; // width of a stroke on the field, of its width

export class Drawing {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.strokes = []; // lists of points, from 0 to 1 both ways
    this.pen = null;
  }

  begin(x, y) {
    this.strokes.push([[x, y]]);
    this.draw();
  }

  extend(x, y) {
    this.strokes.at(-1).push([x, y]);
    this.draw();
  }

  clear() {
    this.strokes = [];
    this.draw();
  }

  showPen(pen) {
    this.pen = pen;
    this.draw();
  }

  hidePen() {
    this.showPen(null);
  }

  draw() {
    const { context } = this;
    const { width } = this.canvas;
    context.clearRect(0, 0, width, width);
    paint(context, this.strokes, PEN * width, ([x, y]) => [x * width, y * width]);
    if (this.pen) {
      context.beginPath();
      context.arc(this.pen.x * width, this.pen.y * width, 9, 0, 2 * Math.PI);
      context.lineWidth = 3;
      context.strokeStyle = this.pen.isDown ? "#1f6feb" : "#8a94a3";
      context.stroke();
    }
  }

  // Return 8 rows of 8 grey levels from 0 to 16, null if nothing is drawn.
  image() {
    const points = this.strokes.flat();
    if (!points.length) return null;
    const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
    const [left, right, top, bottom] = [
      Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys),
    ];
    const room = (side) => side - FINE_PEN;
    const scale = Math.min(
      room(FINE_SIDE) / Math.max(bottom - top, 0.01),
      room(WIDEST) / Math.max(right - left, 0.01),
    );
    const middle = FINE_SIDE / 2;
    const fine = new OffscreenCanvas(FINE_SIDE, FINE_SIDE).getContext("2d");
    paint(fine, this.strokes, FINE_PEN, ([x, y]) => [
      middle + (x - (left + right) / 2) * scale,
      middle + (y - (top + bottom) / 2) * scale,
    ]);
    const { data } = fine.getImageData(0, 0, FINE_SIDE, FINE_SIDE);
    return Array.from({ length: SIDE }, (_, row) =>
      Array.from({ length: SIDE }, (_, column) => inked(data, row, column)),
    );
  }
}

// Return how much of a pixel is inked, from 0 to 16.
function inked(data, row, column) {
  let sum = 0;
  for (let y = row * FINE; y < (row + 1) * FINE; y++) {
    for (let x = column * FINE; x < (column + 1) * FINE; x++) {
      sum += data[(y * FINE_SIDE + x) * 4 + 3] / 255; // opacity
    }
  }
  return Math.round((sum / FINE ** 2) * GREYS);
}

function paint(context, strokes, width, placed) {
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  context.strokeStyle = "#1b2330";
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(...placed(stroke[0]));
    // A point alone is drawn as well, as a dot.
    for (const point of stroke.length > 1 ? stroke.slice(1) : stroke) {
      context.lineTo(...placed(point));
    }
    context.stroke();
  }
}
