// Elements made from data: text goes in as text, so that a hostile name stays a name.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  why: "M9.2 9a2.9 2.9 0 1 1 4.2 2.6c-.9.5-1.4 1.1-1.4 2.2M12 17.6v.1",
  enlarge: "M14 4h6v6M20 4l-7 7M10 20H4v-6M4 20l7-7",
  arrow: "M4 12h15M13 6l6 6-6 6",
  shuffle: "M3 7h3.5c4.5 0 6.5 10 11 10H21M3 17h3.5c1.6 0 2.9-1.3 4-3M13.6 9.9c1.1-1.7 2.3-2.9 3.9-2.900H21M18 4l3 3-3 3M18 14l3 3-3 3",
  upload: "M12 16V4M7 9l5-5 5 5M4 15v4a1 1 0 0 0 1 1h14a1 1 0 0 0 1-1v-4",
  crop: "M7 3v14h14M3 7h14v14",
  link: "M10 14a4 4 0 0 0 5.7 0l3.5-3.500a4 4 0 0 0-5.7-5.700L12 6.300M14 10a4 4 0 0 0-5.7 0l-3.5 3.500a4 4 0 0 0 5.7 5.700L12 17.7",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.500v2M12 19.500v2M2.5 12h2M19.5 12h2M5.3 5.300l1.4 1.400M17.3 17.300l1.4 1.400M5.3 18.700l1.4-1.400M17.3 6.700l1.4-1.4",
  moon: "M20 14.500A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.500z",
  back: "M20 12H5M11 6l-6 6 6 6",
};

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; a property `on` holds listeners, `data` and `aria` attributes of that kind. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "aria") for (const [name, text] of Object.entries(value)) element.setAttribute(`aria-${name}`, text);
    else if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A line drawing; it says nothing to a screen reader, so that the control needs words of its own. */
export function icon(name) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 24 24");
  drawing.setAttribute("aria-hidden", "true");
  drawing.classList.add("icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  drawing.append(path);
  return drawing;
}

/** A button that shows an icon, and its words too unless it is `small`: then they are its label. */
export function iconButton(name, words, press, { small = false, className = "" } = {}) {
  const properties = small ? { title: words, aria: { label: words } } : {};
  const classes = `${small ? "icon-only" : ""} ${className}`.trim();
  const children = small ? [icon(name)] : [icon(name), make("span", {}, words)];
  return make("button", { type: "button", className: classes, on: { click: press }, ...properties }, children);
}

/** A name among other words: isolated, so that its direction of writing does not turn theirs. */
export const nameOf = (item) => make("bdi", {}, item.name || `#${item.id}`);

/** Say something to a screen reader. */
export function announce(words) {
  byId("status").textContent = words;
}

/** The number of hits, of pictures: with separators, and without the plural for one. */
export function count(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

/** A figure with two digits that matter, so that 0.0021 does not become 0.00. */
export function figure(number) {
  if (number === null || number === undefined) return "–";
  const size = Math.abs(number);
  if (size === 0) return "0";
  if (size >= 0.1) return number.toFixed(2);
  return size < 1e-6 ? number.toExponential(1) : number.toLocaleString("en", { maximumSignificantDigits: 2 });
}

export function milliseconds(number) {
  return number < 10 ? `${number.toFixed(1)} ms` : `${Math.round(number).toLocaleString("en")} ms`;
}

/** Run `work` once calls have stopped for `pause` milliseconds; `.cancel()` forgets the last call. */
export function afterPause(pause, work) {
  let timer;
  const later = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(work, pause, ...given);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}
