// Light or dark: as the system says, until the person chooses.

import { byId, icon } from "./dom.js";

const KEPT = "suffuse.theme";
const DARK = matchMedia("(prefers-color-scheme: dark)");

function chosen() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

/** Apply the theme, and let the button change it. */
export function startTheme() {
  const button = byId("theme");
  let kept = chosen();
  const isDark = () => (kept ?? (DARK.matches ? "dark" : "light")) === "dark";
  const apply = () => {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
    button.replaceChildren(icon(isDark() ? "sun" : "moon"));
    button.title = isDark() ? "Light colours" : "Dark colours";
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    kept = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(KEPT, kept);
    } catch {
      // Storage is switched off: the choice lasts as long as the page.
    }
    apply();
  });
  DARK.addEventListener("change", apply);
  apply();
}
