// The matrix of who reaches what, the settings, and the comparison.
import { h } from "./dom";
import type { Cell, Compared, Connection, Failure, View } from "./types";
import { failed } from "./types";

const families: Record<string, string> = { ipv4: "IPv4", ipv6: "IPv6" };
const icons = { mesh: "⇢", direct: "→", onward: "→", dropped: "✕", broken: "!", unknown: "?" };

let family = "ipv4";

export function showMatrix(to: HTMLElement, cells: Cell[], follow: (c: Connection) => void): void {
  const there = [...new Set(cells.map((c) => c.family))];
  if (!there.includes(family)) family = there[0] ?? "ipv4";
  const shown = cells.filter((c) => c.family === family);
  to.replaceChildren(h("p", { class: "lead" }, "What becomes of typical connections. Choose one to follow it through the rules."));
  if (there.length > 1)
    to.append(h("fieldset", { class: "family", "aria-label": "IP family" }, ...there.map((f) => h("label", {},
      h("input", { type: "radio", name: "family", value: f, checked: f === family, onchange: () => { family = f; showMatrix(to, cells, follow); to.querySelector<HTMLInputElement>(`input[value=${f}]`)?.focus(); } }), families[f]))));
  const table = (title: string, of: Cell[]) => {
    const who = [...new Set(of.map((c) => c.who))];
    const what = [...new Set(of.map((c) => c.what))];
    return h("div", { class: "scroll" }, h("table", {},
      h("caption", {}, title),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "to"), ...who.map((w) => h("th", { scope: "col" }, w)))),
      h("tbody", {}, ...what.map((w) => {
        const row = of.filter((c) => c.what === w);
        const ask = row[0].ask;
        const where = `${ask.dst.includes(":") ? `[${ask.dst}]` : ask.dst}:${ask.port} ${ask.proto}`;
        return h("tr", {}, h("th", { scope: "row" }, w, h("small", {}, where)), ...who.map((x) => {
          const c = row.find((r) => r.who === x);
          return h("td", {}, c && h("button", { type: "button", class: "cell " + c.class, title: c.why, onclick: () => follow(c.ask) },
            h("span", { "aria-hidden": "true" }, icons[c.class] + " "), c.said, h("small", {}, short(c.why))));
        }));
      })),
    ));
  };
  to.append(table("From the pod", shown.filter((c) => c.ask.direction === "out")), table("To the pod", shown.filter((c) => c.ask.direction === "in")));
}

/** A reason without its end, which the cell has said already. */
const short = (why: string) => why.replace(/: (passes|redirected to .*)$/, "").replace(/^from pod.*$/, "");

function words(value: unknown): string {
  if (value === undefined || value === null || (Array.isArray(value) && value.length === 0)) return "none";
  if (Array.isArray(value)) return value.map((v) => (typeof v === "object" ? JSON.stringify(v) : String(v))).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function showSettings(to: HTMLElement, view: View): void {
  const all = view.explanation.settings ?? [];
  if (all.length === 0) {
    to.replaceChildren(h("p", { class: "lead" }, "A pod that is not captured has no settings."));
    return;
  }
  const given = all.filter((s) => s.from.source !== "default");
  const row = (s: (typeof all)[number]) => h("tr", { class: s.from.source === "default" ? "" : "given" },
    h("th", { scope: "row" }, s.field), h("td", {}, h("code", {}, words(s.value))),
    h("td", {}, ...(s.from.source === "default" ? ["default"] : [s.from.source + " ", h("code", {}, `${s.from.key}="${s.from.value ?? ""}"`)])));
  to.replaceChildren(
    h("p", { class: "lead" }, given.length ? `${given.length} of ${all.length} come from the pod; the others are the mesh's defaults.` : "All of them are the mesh's defaults."),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), h("th", { scope: "col" }, "value"), h("th", { scope: "col" }, "where it comes from"))),
      h("tbody", {}, ...given.map(row), ...all.filter((s) => s.from.source === "default").map(row)))),
  );
}

const kinds: Record<string, string> = {
  missing: "captured beside, not here", extra: "captured here, not beside", changed: "captured by both, in different ways",
  connection: "the same first packet, another connection",
};

export function showCompared(to: HTMLElement, x: Compared | Failure): void {
  if (failed(x)) {
    to.replaceChildren(h("p", { class: "outcome unknown" }, x.error.text));
    return;
  }
  if (x.foreign.length) {
    to.replaceChildren(
      h("p", { class: "outcome unknown" }, h("strong", {}, "These rules cannot be judged"), "They have rules that the engine does not know, so it claims nothing."),
      h("ul", {}, ...x.foreign.map((f) => h("li", {}, h("code", {}, `${f.family ? f.family + " " : ""}${f.table}/${f.chain}: ${f.rule}`), ` (${f.foreign})`))),
    );
    return;
  }
  const looked = `${x.packets} kinds of packets and ${x.connections} connections were tried: one of each kind that these rules can tell apart.`;
  if (x.same) {
    to.replaceChildren(h("p", { class: "outcome mesh" }, h("strong", {}, "No difference"), looked));
    return;
  }
  to.replaceChildren(
    h("p", { class: "outcome dropped" }, h("strong", {}, `${x.count} differ, in ${x.groups.length} ${x.groups.length === 1 ? "way" : "ways"}`), looked),
    ...x.groups.map((g) => h("div", { class: "group" },
      h("p", {}, h("strong", {}, `${g.count} ${kinds[g.kind] ?? g.kind}`)),
      h("p", {}, "beside: ", h("code", {}, g.other), g.otherIs && ` – ${g.otherIs}`),
      h("p", {}, "this pod: ", h("code", {}, g.this), g.thisIs && ` – ${g.thisIs}`),
      h("ul", {}, ...g.examples.map((e) => h("li", {}, h("code", {}, e))), g.count > g.examples.length && h("li", {}, `… and ${g.count - g.examples.length} more`)))),
  );
}
