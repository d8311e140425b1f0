// The results: two rankings side by side, with marks on what only one of them found.

import { announce, byId, count, figure, iconButton, make, milliseconds, nameOf } from "./dom.js";
import { showPicture } from "./dialogs.js";
import { picture } from "./pictures.js";
import { addRoving, currentAt, focusCell, refreshRoving } from "./roving.js";
import { searchFrom, toAddress, withFeedback } from "./state.js";

const NAMES = { diffusion: "Diffusion", knn: "k-NN" };
const OTHER = { diffusion: "knn", knn: "diffusion" };
const NARROW = matchMedia("(max-width: 44rem)");
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

/** The results' own part of the page; `go(state)` changes the view, `why` shows the explanation of a hit. */
export function createLists(go, why) {
  const title = make("h1", { id: "results-title", tabIndex: -1 });
  const timing = make("p", { className: "timing" });
  const legend = make("p", { className: "legend" });
  const message = make("div", { className: "message" });
  const tabs = make("div", { className: "tabs", role: "tablist", aria: { label: "Rankings" } });
  const panels = { diffusion: panel("diffusion"), knn: panel("knn") };
  const lists = make("div", { className: "lists" }, panels.diffusion.section, panels.knn.section);
  byId("found").replaceChildren(make("div", { className: "head" }, title, timing), legend, tabs, message, lists);
  let state = null;
  let tab = "diffusion";
  NARROW.addEventListener("change", showTabs);

  function panel(method) {
    const list = make("ul", { className: "hits", aria: { label: `${NAMES[method]} results` } });
    const heading = make("h2", { id: `heading-${method}` });
    const section = make("section", { className: `list ${method}`, id: `list-${method}`, aria: { labelledby: `heading-${method}` } }, heading, list);
    addRoving(list);
    const pointed = (event) => {
      const cell = event.target.closest(".cell");
      if (cell) point(method, cell);
    };
    list.addEventListener("pointerover", (event) => event.pointerType === "mouse" && pointed(event));
    list.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && pointed(event));
    list.addEventListener("pointerleave", () => twin(null));
    list.addEventListener("keydown", (event) => press(event, method));
    return { section, list, heading, cells: new Map() };
  }

  /** A hit is pointed at: explain it, and show it in the other list. */
  function point(method, cell) {
    twin(cell.dataset.id);
    why.show(panels[method].cells.get(cell.dataset.id).hit, cell);
  }

  function twin(id) {
    for (const { cells } of Object.values(panels)) {
      for (const [other, { cell }] of cells) cell.classList.toggle("twin", other === id);
    }
  }

  /** Keys on a hit: + and - are feedback, v shows the whole picture, w goes to the explanation. */
  function press(event, method) {
    const cell = event.target.closest(".cell");
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    const { hit } = panels[method].cells.get(cell.dataset.id);
    const actions = { "+": () => judge(hit, 1), "=": () => judge(hit, 1), "-": () => judge(hit, -1), v: () => showPicture(hit), w: () => why.enter(hit, cell) };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }

  function judge(hit, sign) {
    announce(`${sign > 0 ? "More" : "Less"} like ${hit.name || `#${hit.id}`}.`);
    go(withFeedback(state, hit.id, sign));
  }

  function card(hit, method) {
    const name = hit.name || `#${hit.id}`;
    const follow = (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      go(searchFrom(state, hit.id));
    };
    const main = make("a", { className: "go", title: name, on: { click: follow } }, picture(hit, { alt: name }));
    const mark = make("span", { className: "mark" });
    const rank = make("span", { className: "rank" });
    const score = make("span", { className: "score" });
    const cell = make(
      "li", { className: "cell hit", data: { id: hit.id } },
      main, mark,
      make(
        "div", { className: "corner" },
        hit.image ? iconButton("enlarge", `Enlarge ${name}`, () => showPicture(hit), { small: true }) : null,
        iconButton("why", `Why ${name}?`, () => why.enter(panels[method].cells.get(String(hit.id)).hit, cell), { small: true, className: "ask" }),
      ),
      make(
        "div", { className: "caption" }, rank, score,
        iconButton("plus", `More like ${name}`, () => judge(hit, 1), { small: true, className: "more-like" }),
        iconButton("minus", `Less like ${name}`, () => judge(hit, -1), { small: true, className: "less-like" }),
      ),
    );
    return { cell, main, mark, rank, score, hit };
  }

  /** Bring a card up to date: the same picture, at another place. */
  function update(made, hit, method, top) {
    const missed = hit.other_rank === null || hit.other_rank === undefined || hit.other_rank > top;
    const other = NAMES[OTHER[method]];
    const place = hit.other_rank ? `rank ${hit.other_rank}` : "not among its first 1,000";
    made.hit = hit;
    made.cell.classList.toggle("missed", missed && method === "diffusion");
    made.cell.classList.toggle("dropped", missed && method === "knn");
    made.mark.hidden = !missed;
    made.mark.textContent = missed ? `${other}: ${hit.other_rank ?? "1000+"}` : "";
    made.mark.title = missed ? `Missed by ${other}: ${place}` : "";
    made.rank.textContent = String(hit.rank);
    made.score.textContent = figure(hit.score);
    made.main.href = toAddress(searchFrom(state, hit.id));
    const told = missed ? `, missed by ${other} (${place})` : "";
    made.main.setAttribute("aria-label", `${hit.rank}: ${hit.name || `#${hit.id}`}, score ${figure(hit.score)}${told}. Search from it.`);
    made.main.setAttribute("aria-description", "Plus and minus give feedback, v enlarges, w says why.");
  }

  function fill(method, result) {
    const { list, heading, cells, section } = panels[method];
    section.hidden = !result;
    const hits = result?.hits ?? [];
    const before = positions(cells);
    const focused = list.contains(document.activeElement) ? { id: document.activeElement.closest(".cell")?.dataset.id, at: [...list.children].indexOf(document.activeElement.closest(".cell")) } : null;
    const kept = new Map();
    for (const hit of hits) {
      const made = cells.get(String(hit.id)) ?? card(hit, method);
      update(made, hit, method, Math.max(hits.length, 1));
      kept.set(String(hit.id), made);
    }
    panels[method].cells = kept;
    const current = currentAt(list);
    list.replaceChildren(...[...kept.values()].map(({ cell }) => cell));
    refreshRoving(list, current);
    heading.replaceChildren(NAMES[method], make("small", {}, result ? milliseconds(result.took_ms) : ""));
    glide(before, kept);
    return focused && (() => focusCell(kept.get(focused.id)?.cell ?? list.children[Math.min(focused.at, list.children.length - 1)] ?? null));
  }

  function showTabs() {
    const both = state?.method === "both" && !panels.knn.section.dataset.empty;
    const asTabs = NARROW.matches && both;
    tabs.hidden = !asTabs;
    for (const [method, { section }] of Object.entries(panels)) {
      section.hidden = method === "knn" && !both ? true : asTabs && tab !== method;
      section.setAttribute("role", asTabs ? "tabpanel" : "region");
    }
    tabs.replaceChildren(...Object.keys(panels).map((method) => make(
      "button", {
        type: "button", role: "tab", id: `tab-${method}`, className: "tab", tabIndex: tab === method ? 0 : -1,
        aria: { selected: String(tab === method), controls: `list-${method}` },
        on: { click: () => choose(method), keydown: (event) => /^Arrow(Left|Right)$/.test(event.key) && choose(OTHER[method]) },
      }, NAMES[method],
    )));
  }

  function choose(method) {
    tab = method;
    showTabs();
    byId(`tab-${method}`).focus();
  }

  return {
    /** A search has begun: what is there stays, paler, until the answer comes. */
    wait(wanted) {
      state = wanted; // A second click counts from here, even before the answer to the first.
      byId("found").setAttribute("aria-busy", "true");
    },
    /** Name the view, once the query's item is known. */
    name(words, item) {
      title.replaceChildren(words, " ", nameOf(item));
      document.title = `${words} ${item.name || `#${item.id}`} · Suffuse`;
    },
    show(wanted, answer) {
      state = wanted;
      byId("found").removeAttribute("aria-busy");
      const { diffusion, knn } = answer.results;
      const both = state.method === "both" && knn;
      panels.knn.section.dataset.empty = both ? "" : "1";
      lists.classList.toggle("alone", !both);
      const refocus = [fill("diffusion", diffusion), fill("knn", both ? knn : null)].find(Boolean);
      showTabs();
      refocus?.();
      const hits = diffusion.hits;
      const missed = hits.filter((hit) => !hit.other_rank || hit.other_rank > hits.length).length;
      const parts = [`diffusion ${milliseconds(diffusion.took_ms)}`, knn && `k-NN ${milliseconds(knn.took_ms)}`].filter(Boolean);
      timing.textContent = `${milliseconds(answer.took_ms)} in all`;
      timing.title = parts.join(", ");
      legend.hidden = !knn || hits.length === 0;
      legend.replaceChildren(
        make("span", { className: "key", aria: { hidden: "true" } }),
        make("span", {}, make("strong", {}, missed ? `${count(missed, "picture")} that k-NN missed` : "k-NN found all of these"),
          missed ? `: framed, not among its first ${hits.length}. The small figure is the rank it gave them.` : ", in its own order."),
      );
      message.replaceChildren();
      if (hits.length === 0) {
        const filtered = Object.keys(state.filter).length > 0;
        message.append(make("p", { className: "state" }, make("strong", {}, "Nothing was found."),
          filtered ? " No picture passes the filter." : " The index holds nothing but the query.", " "));
        if (filtered) message.append(make("button", { type: "button", className: "button", on: { click: () => go({ ...state, filter: {} }) } }, "Clear the filter"));
      }
      announce(hits.length ? `${count(hits.length, "picture")} found in ${milliseconds(answer.took_ms)}. ${missed ? `${missed} of them missed by k-NN.` : ""}` : "Nothing was found.");
    },
    /** The search failed: no old hits under a new query. */
    fail(error, again) {
      byId("found").removeAttribute("aria-busy");
      for (const { list, cells } of Object.values(panels)) {
        list.replaceChildren();
        cells.clear();
      }
      timing.textContent = "";
      legend.hidden = tabs.hidden = true;
      panels.diffusion.section.hidden = panels.knn.section.hidden = true;
      message.replaceChildren(
        make("div", { className: "state", role: "alert" },
          make("strong", {}, error.message), error.hint ? make("p", {}, error.hint) : "",
          make("div", { className: "buttons" },
            make("button", { type: "button", className: "button", on: { click: again } }, "Try again"))),
      );
    },
    focusTitle: () => title.focus(),
  };
}

function positions(cells) {
  if (CALM.matches) return new Map();
  return new Map([...cells].map(([id, { cell }]) => [id, cell.getBoundingClientRect()]));
}

/** Let cards that moved glide to their new place, so that the eye can follow a re-ranking. */
function glide(before, cells) {
  for (const [id, { cell }] of cells) {
    const from = before.get(id);
    if (!from?.width) continue;
    const to = cell.getBoundingClientRect();
    const [x, y] = [from.x - to.x, from.y - to.y];
    if (x || y) cell.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: 260, easing: "ease-out" });
  }
}
