// The two dialogs: the full picture, and the question for a token.

import { byId, icon, iconButton, make } from "./dom.js";
import { picture } from "./pictures.js";

function open(dialog) {
  const before = document.activeElement;
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    dialog.remove();
    // A new answer may have taken the hit away meanwhile: another one has its place.
    (before?.isConnected ? before : document.querySelector("#results .current .go"))?.focus();
  });
  dialog.showModal();
}

/** Show the whole picture of an item, or of an upload given as an address. */
export function showPicture(item, address = null) {
  const close = () => dialog.close();
  const facts = Object.entries(item.metadata ?? {}).map(([field, value]) => [
    make("dt", {}, field), make("dd", {}, String(value)),
  ]);
  const dialog = make(
    "dialog", { className: "viewer", aria: { label: item.name } },
    iconButton("close", "Close", close, { small: true, className: "quiet" }),
    picture(item, { path: item.image, address, alt: item.name, eager: true }),
    make("h2", {}, item.name),
    facts.length ? make("dl", { className: "facts" }, facts.flat()) : null,
  );
  // A click beside the content is a click on the dialog itself.
  dialog.addEventListener("click", (event) => event.target === dialog && close());
  open(dialog);
}

/** Ask for the token; gives it, or null if the person does not want to say. */
export function askForToken(refused) {
  return new Promise((resolve) => {
    const field = make("input", { type: "password", id: "token", name: "token", autocomplete: "off", required: true });
    const wrong = refused ? make("p", { className: "bad", role: "alert" }, "The server did not take that token.") : null;
    let given = null;
    const dialog = make(
      "dialog", { className: "asking", aria: { labelledby: "token-title" } },
      make("h2", { id: "token-title" }, "This server needs a token"),
      make("p", {}, "Whoever started it knows it. It is kept until you close this tab."),
      wrong,
      make(
        "form", {
          on: {
            submit: (event) => {
              event.preventDefault();
              given = field.value;
              dialog.close();
            },
          },
        },
        make("label", { htmlFor: "token" }, "Token"),
        field,
        make(
          "div", { className: "buttons" },
          make("button", { type: "button", className: "button", on: { click: () => dialog.close() } }, "Cancel"),
          make("button", { type: "submit", className: "button strong" }, "Go on"),
        ),
      ),
    );
    dialog.addEventListener("close", () => resolve(given));
    open(dialog);
    field.focus();
  });
}

/** What went wrong, above everything, with a button that tries again where that can help. */
export function showAlert(error, again = null) {
  const alert = byId("alert");
  alert.hidden = false;
  alert.replaceChildren(
    make("p", {}, make("strong", {}, error.message), error.hint ? ` ${error.hint}` : ""),
    again ? make("button", { type: "button", className: "button", on: { click: () => { hideAlert(); again(); } } }, "Try again") : "",
    make("button", { type: "button", className: "icon-only quiet", title: "Dismiss", aria: { label: "Dismiss" }, on: { click: hideAlert } }, icon("close")),
  );
}

export function hideAlert() {
  const alert = byId("alert");
  alert.hidden = true;
  alert.replaceChildren();
}
