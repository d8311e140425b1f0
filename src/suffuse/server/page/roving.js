// One stop for Tab in a grid of many: arrow keys move inside it, and only the current cell's controls can be tabbed to.

const controls = (cell) => cell.querySelectorAll("a[href], button");

function setCurrent(list, cell) {
  const before = list.querySelector(":scope > .current");
  if (before === cell) return;
  if (before) {
    before.classList.remove("current");
    for (const control of controls(before)) control.tabIndex = -1;
  }
  cell.classList.add("current");
  for (const control of controls(cell)) control.tabIndex = 0;
}

/** Which of the cells is the current one; -1 if none is. */
export const currentAt = (list) => [...list.children].findIndex((cell) => cell.classList.contains("current"));

/** Call after the cells have changed: all leave the order of Tab but the current one, or what is at its place now. */
export function refreshRoving(list, at = 0) {
  const last = list.children.length - 1;
  const current = list.querySelector(":scope > .current") ?? list.children[Math.min(Math.max(at, 0), last)];
  for (const cell of list.children) {
    const reachable = cell === current ? 0 : -1;
    cell.classList.toggle("current", cell === current);
    for (const control of controls(cell)) control.tabIndex = reachable;
  }
}

/** How many cells stand in the first row. */
function columns(cells) {
  const next = cells.findIndex((cell) => cell.offsetTop > cells[0].offsetTop);
  return next < 0 ? cells.length : next;
}

/** Let arrow keys, Home and End move the focus among a list's cells. */
export function addRoving(list) {
  list.addEventListener("focusin", (event) => {
    const cell = event.target.closest(".cell");
    if (cell) setCurrent(list, cell);
  });
  list.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const cells = [...list.children];
    const at = cells.indexOf(event.target.closest(".cell"));
    if (at < 0) return;
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -at, End: cells.length - 1 - at };
    if (event.key === "ArrowDown") steps.ArrowDown = columns(cells);
    if (event.key === "ArrowUp") steps.ArrowUp = -columns(cells);
    if (!(event.key in steps)) return;
    event.preventDefault();
    focusCell(cells[at + steps[event.key]]);
  });
}

export function focusCell(cell) {
  if (!cell) return;
  const main = cell.querySelector(".go");
  main.focus();
  cell.scrollIntoView({ block: "nearest" });
}
