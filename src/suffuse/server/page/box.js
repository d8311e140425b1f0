// A part of the query picture: drawn, moved and resized by pointer or by keyboard, in fractions of the picture.

import { afterPause, announce, make } from "./dom.js";

const LEAST = 0.03;
const STEP = 0.02;
const FIRST = [0.2, 0.2, 0.8, 0.8];

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const percent = (side) => `${Math.round(side * 100)} %`;

/** Words for a box, for those who cannot see it. */
export const describe = ([x0, y0, x1, y1]) =>
  `from ${percent(x0)} to ${percent(x1)} across, from ${percent(y0)} to ${percent(y1)} down`;

/** A layer over `frame` on which a box can be set; `changed(box or null)` is called when it is settled. */
export function boxLayer(frame, box, changed) {
  const handles = ["nw", "ne", "sw", "se"].map((corner) => make("span", { className: `handle ${corner}`, data: { corner } }));
  const area = make("div", { className: "box", tabIndex: 0, role: "application", hidden: true }, handles);
  const layer = make("div", { className: "box-layer" }, area);
  // By then another picture may be the query.
  const settle = afterPause(350, () => layer.isConnected && changed(box));

  const draw = () => {
    area.hidden = box === null;
    if (box === null) return;
    area.style.left = `${box[0] * 100}%`;
    area.style.top = `${box[1] * 100}%`;
    area.style.width = `${(box[2] - box[0]) * 100}%`;
    area.style.height = `${(box[3] - box[1]) * 100}%`;
    area.setAttribute("aria-label", `Part of the picture, ${describe(box)}. Arrow keys move it, with Shift they resize it, Escape clears it.`);
  };

  const clear = () => {
    settle.cancel();
    box = null;
    draw();
    changed(null);
  };

  const point = (event) => {
    const { left, top, width, height } = layer.getBoundingClientRect();
    return [clamp((event.clientX - left) / width, 0, 1), clamp((event.clientY - top) / height, 0, 1)];
  };

  let drag = null;
  layer.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    settle.cancel();
    layer.setPointerCapture(event.pointerId);
    const at = point(event);
    const before = box;
    const corner = event.target.dataset.corner;
    if (corner) drag = { anchor: [corner.includes("w") ? box[2] : box[0], corner.includes("n") ? box[3] : box[1]], before };
    else if (area.contains(event.target)) drag = { grip: at, from: [...box], before };
    else drag = { anchor: at, before };
  });
  layer.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [x, y] = point(event);
    if (drag.grip) box = moved(drag.from, x - drag.grip[0], y - drag.grip[1]);
    else {
      const [a, b] = drag.anchor;
      const drawn = [Math.min(a, x), Math.min(b, y), Math.max(a, x), Math.max(b, y)];
      box = drawn[2] - drawn[0] >= LEAST && drawn[3] - drawn[1] >= LEAST ? drawn : drag.before;
    }
    draw();
  });
  const end = () => {
    if (!drag) return;
    const { before } = drag;
    drag = null;
    if (String(box) !== String(before)) changed(box);
  };
  layer.addEventListener("pointerup", end);
  layer.addEventListener("pointercancel", end);

  area.addEventListener("keydown", (event) => {
    const [dx, dy] = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] }[event.key] ?? [0, 0];
    if (dx || dy) {
      box = event.shiftKey ? resized(box, dx, dy) : moved(box, dx, dy);
      draw();
      settle();
    } else if (event.key === "Escape" || event.key === "Delete" || event.key === "Backspace") clear();
    else if (event.key === "Enter") {
      settle.cancel();
      changed(box);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });

  frame.append(layer);
  draw();
  return {
    clear,
    /** Begin with a box in the middle, for the keyboard. */
    begin() {
      box ??= FIRST;
      draw();
      area.focus();
      announce(`A part is selected, ${describe(box)}. Arrow keys move it, with Shift they resize it, Enter searches.`);
      settle();
    },
    focus: () => box !== null && area.focus(),
  };
}

function moved([x0, y0, x1, y1], dx, dy) {
  dx = clamp(dx, -x0, 1 - x1);
  dy = clamp(dy, -y0, 1 - y1);
  return [x0 + dx, y0 + dy, x1 + dx, y1 + dy];
}

const resized = ([x0, y0, x1, y1], dx, dy) => [x0, y0, clamp(x1 + dx, x0 + LEAST, 1), clamp(y1 + dy, y0 + LEAST, 1)];
