// The editor. The Tab key leaves it, as it leaves any other field.
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers, placeholder } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--code-key)" },
  { tag: [tags.string, tags.content], color: "var(--code-text)" },
  { tag: [tags.comment, tags.lineComment], color: "var(--muted)", fontStyle: "italic" },
  { tag: [tags.number, tags.bool, tags.keyword], color: "var(--code-value)" },
]);

const look = EditorView.theme({
  "&": { backgroundColor: "var(--field)", color: "var(--text)", fontSize: "13px", height: "100%" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--text)", padding: "10px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--field)", color: "var(--muted)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--line-now)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--selection)" },
  ".cm-placeholder": { color: "var(--muted)" },
});

export interface Editor {
  set(text: string): void;
  get(): string;
}

export function editor(parent: HTMLElement, options: { label: string; hint?: string; yaml?: boolean; changed(text: string): void }): Editor {
  let quiet = false;
  const extensions: Extension[] = [
    lineNumbers(), history(), drawSelection(), highlightActiveLine(), EditorState.tabSize.of(2),
    keymap.of([...defaultKeymap, ...historyKeymap]), syntaxHighlighting(colours), look,
    EditorView.contentAttributes.of({ "aria-label": options.label, tabindex: "0" }),
    EditorView.updateListener.of((u) => {
      if (u.docChanged && !quiet) options.changed(u.state.doc.toString());
    }),
  ];
  if (options.yaml !== false) extensions.push(yaml());
  if (options.hint) extensions.push(placeholder(options.hint));
  const view = new EditorView({ parent, state: EditorState.create({ extensions }) });
  return {
    get: () => view.state.doc.toString(),
    set(text) {
      if (text === view.state.doc.toString()) return;
      quiet = true;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
      quiet = false;
    },
  };
}
