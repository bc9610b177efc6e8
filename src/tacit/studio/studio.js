// Asks the studio what a form says, and puts the answer in its place. Every answer is escaped where it is made.
"use strict";
(() => {
  const REST = 250; // ms after the last movement
  const form = document.querySelector("form.live");
  const language = document.documentElement.lang || "en";

  // -- the values of the form; names that end in [] are lists
  function values() {
    const found = { lang: language };
    if (!form) return found;
    for (const [name, value] of new FormData(form)) {
      if (name.endsWith("[]")) (found[name] ||= []).push(value);
      else found[name] = value;
    }
    return found;
  }

  // -- a slider and the number beside it
  const slider = (input) => form && form.querySelector(`input[type=range][data-for="${input.id}"]`);
  function toSlider(input) {
    const range = slider(input), value = Number(language === "de" ? input.value.replace(",", ".") : input.value);
    if (!range || !input.value || Number.isNaN(value)) return;
    range.value = range.dataset.log === "1" ? Math.log10(value) : value;
    range.setAttribute("aria-valuetext", input.value);
  }
  function toNumber(range) {
    const input = document.getElementById(range.dataset.for);
    let value = range.dataset.log === "1" ? 10 ** Number(range.value) : Number(range.value);
    value = Number(value.toPrecision(3));
    if (range.dataset.whole === "1") value = Math.round(value);
    input.value = value < 1e-3 ? value.toExponential().replace("e+", "e") : String(value);
    range.setAttribute("aria-valuetext", input.value);
  }

  // -- what the address keeps: lists, which no other page asks for, behind its #
  const listed = form && (form.id === "schema-form" || location.pathname === "/runs");
  const kept = new URLSearchParams(listed ? location.hash.slice(1) : "");
  const wanted = new Set(kept.getAll("compare[]"));
  function restored() {
    const columns = document.getElementById("columns");
    for (let i = Math.min(kept.getAll("name[]").length, 500); columns && i > 1; i--) columns.append(columns.firstElementChild.cloneNode(true));
    for (const name of new Set(kept.keys())) {
      const fields = form.querySelectorAll(`[name="${CSS.escape(name)}"]:not([type=checkbox])`);
      kept.getAll(name).forEach((value, i) => { if (fields[i]) fields[i].value = value; });
    }
  }

  // -- questions
  const running = new Map(), timers = new Map();
  async function ask(question, place, rough = false) {
    running.get(place)?.abort();
    const stop = new AbortController();
    running.set(place, stop);
    place.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(`/api/${question}?lang=${encodeURIComponent(language)}`, {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(rough ? { ...values(), rough: place.querySelector("output")?.dataset.price || rough } : values()),
        signal: stop.signal, credentials: "same-origin",
      });
      if (answer.status === 401) { location.reload(); return; }
      const said = await answer.json();
      const field = said.field && form?.elements[said.field];
      if (field) field.setAttribute("aria-invalid", "true");
      show(place, said.html, answer.status === 422);
    } catch (error) {
      if (error.name === "AbortError") return;
      told(place, document.body.dataset.later, "warn", "alert");
    }
    if (running.get(place) === stop && !rough) place.setAttribute("aria-busy", "false");
  }

  // While a slider moves, one rough price at a time, of where it is by then; the narrow one once it rests.
  const moving = new Map();
  async function follow(place) {
    const now = moving.get(place);
    if (now) { now.again = true; return; }
    const state = { again: true };
    moving.set(place, state);
    while (state.again) {
      state.again = false;
      await ask(place.dataset.ask, place, true);
    }
    moving.delete(place);
    timers.set(place, setTimeout(() => ask(place.dataset.ask, place), REST));
  }
  function told(place, text, kind, role) {
    const line = document.createElement("p");
    line.className = kind;
    line.setAttribute("role", role);
    line.textContent = text;
    delete place.dataset.shown;
    place.replaceChildren(line);
  }
  const places = [...document.querySelectorAll("[data-ask]")];
  // What is wrong is said once, at the first place that it concerns.
  function once(place, html) {
    place.failed = html;
    const same = places.filter((one) => one.failed === html);
    for (const one of same.slice(1)) if (one !== place) put(one, "<p>–</p>");
    return same[0] === place || !places.includes(place) ? html : "<p>–</p>";
  }
  function show(place, html, failed = false) {
    if (!failed) delete place.failed;
    put(place, failed ? once(place, html) : html);
  }
  function put(place, html) {
    if (place.dataset.shown === html) return; // nothing new: what is focused or ticked stays
    place.dataset.shown = html;
    const ticked = new Set([...place.querySelectorAll("input:checked")].map((box) => box.value));
    const first = wanted.size && place.dataset.ask === "runs/listed";
    if (first) { wanted.forEach((name) => ticked.add(name)); wanted.clear(); }
    const open = [...place.querySelectorAll("details")].map((one) => one.open);
    place.innerHTML = html;
    for (const box of place.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.value);
    place.querySelectorAll("details").forEach((one, i) => { one.open = open[i] || false; });
    if (first) changed();
  }
  function changed() {
    form?.querySelectorAll("[aria-invalid]").forEach((one) => one.removeAttribute("aria-invalid"));
    for (const place of places) {
      clearTimeout(timers.get(place));
      if ("rough" in place.dataset) { follow(place); continue; }
      timers.set(place, setTimeout(() => ask(place.dataset.ask, place), Number(place.dataset.wait)));
    }
    clearTimeout(timers.get(keep));
    timers.set(keep, setTimeout(keep, REST));
  }
  function keep() {
    if (listed) { history.replaceState(null, "", `${location.pathname}${location.search}#${new URLSearchParams(new FormData(form))}`); return; }
    if (!form || location.pathname.startsWith("/runs")) return;
    const link = new URLSearchParams();
    if (language !== "en") link.set("lang", language);
    for (const [name, value] of Object.entries(values())) if (name !== "lang" && !Array.isArray(value)) link.set(name, value);
    history.replaceState(null, "", `?${link}`);
  }

  // -- what people do
  document.addEventListener("input", (event) => {
    const one = event.target;
    if (one.type === "range") toNumber(one);
    else if (one.id) toSlider(one);
    if (form && form.contains(one)) changed();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button, a.lang");
    if (!button) return;
    if (button.dataset.click) {
      const place = document.getElementById(button.dataset.into);
      if (button.dataset.busy) told(place, button.dataset.busy, "muted", "status");
      button.disabled = true;
      ask(button.dataset.click, place).finally(() => { button.disabled = false; });
    }
    if (button.dataset.lang) {
      event.preventDefault();
      const link = new URLSearchParams(location.search);
      link.set("lang", button.dataset.lang);
      location.search = link.toString();
    }
    const columns = document.getElementById("columns");
    if ("add" in button.dataset) {
      const copy = columns.firstElementChild.cloneNode(true);
      for (const input of copy.querySelectorAll("input")) input.value = "";
      columns.append(copy);
      copy.querySelector("input").focus();
      changed();
    }
    if ("remove" in button.dataset && columns.children.length > 1) {
      button.closest("fieldset").remove();
      columns.querySelector("input").focus();
      changed();
    }
  });
  form?.addEventListener("submit", (event) => event.preventDefault());

  // -- begin
  restored();
  form?.querySelectorAll("input[id]").forEach(toSlider);
  for (const place of places) {
    ask(place.dataset.ask, place);
    if (place.dataset.every) setInterval(() => { if (!document.hidden) ask(place.dataset.ask, place); }, Number(place.dataset.every));
  }
})();
