// Why a picture was found: the strongest chain that leads to it, and the share of each seed.

import { explain } from "./api.js";
import { afterPause, byId, count, figure, icon, iconButton, make, nameOf } from "./dom.js";
import { picture } from "./pictures.js";

const BARS = 5;
const TOUCH = matchMedia("(max-width: 44rem)");

/** The panel with explanations; on a phone it opens on demand, elsewhere it follows the pointer. */
export function createWhy() {
  const panel = byId("why");
  const title = make("h2", { id: "why-title", tabIndex: -1 }, "Why?");
  const body = make("div", { className: "why-body" });
  const closing = iconButton("close", "Close the explanation", close, { small: true, className: "quiet" });
  panel.replaceChildren(make("div", { className: "why-head" }, title, closing), body);
  const answers = new Map();
  let context = null; // The query that the hits on screen belong to.
  let query = {}; // Its item, or the upload's name and small copy.
  let shown = null;
  let origin = null;
  let opened = !TOUCH.matches;
  let running = null;

  const request = afterPause(110, async (hit) => {
    running?.abort();
    const mine = (running = new AbortController());
    const key = `${context.query} ${context.seeds} ${hit.id}`;
    try {
      if (!answers.has(key)) answers.set(key, await explain(context.query, hit.id, context.seeds, mine.signal));
      if (shown === hit.id && !mine.signal.aborted) render(hit, answers.get(key));
    } catch (error) {
      if (error.name !== "AbortError" && shown === hit.id) say(error.message, error.hint);
    }
  });

  function say(...words) {
    body.replaceChildren(make("p", { className: "hint" }, words.filter(Boolean).join(" ")));
  }

  function hint() {
    shown = null;
    title.textContent = "Why?";
    say(TOUCH.matches ? "" : "Point at a picture, or move to it with the arrow keys, to see the chain that led there.");
  }

  function close() {
    request.cancel();
    opened = false;
    panel.hidden = true;
    document.body.classList.remove("explaining");
    if (panel.contains(document.activeElement) || document.activeElement === document.body) origin?.querySelector(".go")?.focus();
  }

  function open() {
    opened = true;
    panel.hidden = context === null;
    document.body.classList.toggle("explaining", !panel.hidden);
  }

  panel.addEventListener("keydown", (event) => event.key === "Escape" && close());

  function render(hit, told) {
    title.replaceChildren("Why ", nameOf(hit), "?");
    body.replaceChildren(chain(told, query, context.positive), shares(told));
  }

  return {
    /** The hits on screen belong to this query from now on. */
    belongsTo(query, seeds, positive) {
      context = { query, seeds, positive };
      hint();
      if (TOUCH.matches) close();
      else if (opened) open();
    },
    asked(item) {
      query = item;
    },
    hide() {
      context = null;
      request.cancel();
      panel.hidden = true;
      document.body.classList.remove("explaining");
    },
    show(hit, cell) {
      if (context === null || !opened || shown === hit.id) return;
      shown = hit.id;
      origin = cell;
      request(hit);
    },
    /** Asked for by a button or a key: open the panel, and go there. */
    enter(hit, cell) {
      if (context === null) return;
      open();
      if (shown !== hit.id) {
        shown = hit.id;
        say("Looking for the chain…");
        title.replaceChildren("Why ", nameOf(hit), "?");
        request(hit);
      }
      origin = cell;
      title.focus();
    },
  };
}

/** Query, seed, ..., hit: little pictures with the strength of each step between them. */
function chain(told, query, positive) {
  const heading = make("h3", {}, "Strongest chain");
  if (!told.chain) {
    return make("section", { className: "chain" }, heading, make("p", { className: "hint" }, `No chain can be shown: ${told.chain_missing ?? "this index keeps none"}.`));
  }
  const { nodes, steps, start, strength } = told.chain;
  // A picture of the index that is searched from is its own nearest: it need not be shown twice.
  const itself = positive.includes(nodes[0].id);
  const links = nodes.map((node, place) => {
    const weight = place === 0 ? start : steps[place - 1];
    const from = place === 0 ? "from the query" : "one step";
    const role = place === nodes.length - 1 ? "found" : place > 0 ? "" : itself ? "query" : "seed";
    return make(
      "li", { className: `link ${role === "query" ? "from" : role}` },
      role === "query" ? null : make("span", { className: "step", title: `${from}, strength ${figure(weight)}` }, make("span", {}, figure(weight)), icon("arrow")),
      make("figure", { title: node.name }, picture(node, { alt: node.name, eager: true, brief: true }), make("figcaption", {}, role || "\u00a0")),
    );
  });
  const asked = make("li", { className: "link from" }, make(
    "figure", { title: query.name }, picture(query, { address: query.address, alt: query.name, eager: true, brief: true }), make("figcaption", {}, "query"),
  ));
  return make(
    "section", { className: "chain" }, heading,
    make("ol", { role: "list" }, itself ? null : asked, links),
    make("p", { className: "about" }, `${count(nodes.length - itself, "step")} from the query; the product of their strengths is ${figure(strength)}.`),
  );
}

/** How much of the score came from each seed, the largest first. */
function shares(told) {
  const all = told.contributions;
  const heading = make("h3", {}, "Where the score comes from");
  if (all.length === 0) {
    return make("section", { className: "shares" }, heading, make("p", { className: "hint" }, "Diffusion did not reach this picture: it stands here for its similarity alone."));
  }
  const largest = Math.max(...all.map(({ share }) => Math.abs(share)), 1e-9);
  const rows = all.slice(0, BARS).map(({ seed, share, similarity }) => {
    const bar = make("span", { className: share < 0 ? "bar against" : "bar" });
    bar.style.width = `${(Math.abs(share) / largest) * 100}%`;
    const words = `${seed.name || `#${seed.id}`}: ${Math.round(share * 100)} %, similarity to the query ${figure(similarity)}`;
    return make(
      "li", { title: words },
      picture(seed, { alt: "" }),
      make("span", { className: "seed" }, seed.name?.split("/").pop() || `#${seed.id}`),
      make("span", { className: "track" }, bar),
      make("span", { className: "share" }, `${Math.round(share * 100)} %`),
    );
  });
  const rest = all.slice(BARS).reduce((sum, { share }) => sum + share, 0);
  return make(
    "section", { className: "shares" }, heading,
    make("ol", { role: "list" }, rows),
    make("p", { className: "about" }, all.length > BARS ? `${count(all.length - BARS, "more seed")}: ${Math.round(rest * 100)} %. ` : "", `Score before the second look: ${figure(told.score)}.`),
  );
}
