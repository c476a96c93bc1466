// Elements in one line. Text is always text: nothing that a pod says becomes HTML.

type Child = Node | string | null | undefined | false;
type Props = Record<string, string | number | boolean | undefined | EventListener>;

function fill<E extends Element>(e: E, props: Props, children: Child[]): E {
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") e.addEventListener(name.slice(2), value);
    else if (value === true) e.setAttribute(name, "");
    else if (value !== undefined && value !== false) e.setAttribute(name, String(value));
  }
  e.append(...children.filter((c): c is Node | string => c !== null && c !== undefined && c !== false));
  return e;
}

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), props, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

export function byId<E extends HTMLElement = HTMLElement>(id: string): E {
  const e = document.getElementById(id);
  if (!e) throw new Error(`no element ${id}`);
  return e as E;
}

/** Tabs by the pattern of the ARIA Authoring Practices: arrow keys move, and what is chosen is shown. */
export function tabs(list: HTMLElement, chosen: (name: string) => void): (name: string) => void {
  const all = [...list.querySelectorAll<HTMLButtonElement>("[role=tab]")];
  const choose = (tab: HTMLButtonElement) => {
    for (const t of all) {
      const is = t === tab;
      t.setAttribute("aria-selected", String(is));
      t.tabIndex = is ? 0 : -1;
      byId(t.getAttribute("aria-controls")!).hidden = !is;
    }
    chosen(tab.dataset.name!);
  };
  for (const [i, tab] of all.entries()) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (e) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1 + all.length, Home: 0, End: all.length - 1 }[e.key];
      if (to === undefined) return;
      e.preventDefault();
      const next = all[to % all.length];
      next.focus();
      choose(next);
    });
  }
  return (name) => {
    const tab = all.find((t) => t.dataset.name === name);
    if (tab) choose(tab);
  };
}
