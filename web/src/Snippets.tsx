import { useState } from "preact/hooks";
import type { View } from "./types";

/** What to copy to run the plan. */
export function Snippets({ view }: { view: View }) {
  const [copied, setCopied] = useState("");
  const copy = async (name: string, text: string) => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(name);
    } catch {
      setCopied(""); // a page from a file may not be allowed to; the text can still be selected
    }
  };
  return (
    <section aria-labelledby="use">
      <h2 id="use">Use it</h2>
      <div class="snippets">
        {view.snippets.map(({ name, text, note }) => (
          <div class="snippet">
            <div class="head">
              <h3>{name}</h3>
              <button type="button" onClick={() => void copy(name, text)} aria-label={`Copy: ${name}`}>
                {copied === name ? "Copied" : "Copy"}
              </button>
            </div>
            <pre tabIndex={0} aria-label={name}>
              {text}
            </pre>
            {note && <p class="hint">{note}</p>}
          </div>
        ))}
      </div>
    </section>
  );
}
