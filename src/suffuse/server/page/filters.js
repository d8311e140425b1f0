// The filter on metadata: one control for each field of the index, by its type.

import { afterPause, make } from "./dom.js";

const FEW = 6; // Up to so many values are checkboxes, more are a list to choose from.
const CUT = 50; // The service tells no more values than this.

/** Controls for the fields of `metadata`, set as `filter` says; `changed(filter)` when one is used. */
export function filterControls(metadata, filter, changed) {
  const current = structuredClone(filter);
  const settle = afterPause(250, () => changed(structuredClone(current)));
  const set = (field, value) => {
    if (value === undefined) delete current[field];
    else current[field] = value;
    settle();
  };
  return Object.entries(metadata).map(([field, about], place) => {
    const choose = (value) => set(field, value);
    if (about.type === "number") return range(field, about, current[field], choose, place);
    if (about.type === "boolean") return select(field, [["true", "yes"], ["false", "no"]], String(current[field] ?? ""), (text) => choose(text === "" ? undefined : text === "true"), place);
    const values = (about.values ?? []).map(String);
    if (values.length === 0 || values.length >= CUT) return anyText(field, values, current[field], choose, place);
    if (values.length <= FEW) return checkboxes(field, values, current[field], choose);
    return select(field, values.map((value) => [value, value]), String(current[field] ?? ""), (text) => choose(text === "" ? undefined : text), place);
  });
}

function labelled(field, control, place) {
  control.id = `filter-${place}`;
  return make("div", { className: "field" }, make("label", { htmlFor: control.id }, field), control);
}

function select(field, choices, chosen, choose, place) {
  const options = [["", "any"], ...choices].map(([value, words]) => make("option", { value, selected: value === chosen }, words));
  const control = make("select", { on: { change: () => choose(control.value) } }, options);
  return labelled(field, control, place);
}

function checkboxes(field, values, chosen, choose) {
  const wanted = new Set((Array.isArray(chosen) ? chosen : [chosen]).map(String));
  const boxes = values.map((value) => make("input", { type: "checkbox", value, checked: wanted.has(value) }));
  const change = () => {
    const picked = boxes.filter((box) => box.checked).map((box) => box.value);
    choose(picked.length ? picked : undefined);
  };
  const labels = boxes.map((box) => make("label", { className: "check" }, box, make("span", {}, box.value)));
  return make("fieldset", { className: "field", on: { change } }, make("legend", {}, field), make("div", { className: "checks" }, labels));
}

function range(field, about, chosen, choose, place) {
  const end = (side, words) =>
    make("input", {
      type: "number", step: "any", value: chosen?.[side] ?? "", placeholder: about[side] ?? "", aria: { label: `${field}, ${words}` },
      on: { input: change },
    });
  const [low, high] = [end("min", "at least"), end("max", "at most")];
  function change() {
    const value = {};
    if (low.value !== "") value.min = Number(low.value);
    if (high.value !== "") value.max = Number(high.value);
    choose(Object.keys(value).length ? value : undefined);
  }
  low.id = `filter-${place}`;
  return make("div", { className: "field" }, make("label", { htmlFor: low.id }, field), make("div", { className: "range" }, low, make("span", {}, "to"), high));
}

function anyText(field, values, chosen, choose, place) {
  const list = make("datalist", { id: `values-${place}` }, values.map((value) => make("option", { value })));
  const control = make("input", {
    type: "text", value: chosen ?? "", placeholder: "any", autocomplete: "off",
    on: { change: () => choose(control.value === "" ? undefined : control.value) },
  });
  control.setAttribute("list", list.id);
  const made = labelled(field, control, place);
  made.append(list);
  return made;
}
