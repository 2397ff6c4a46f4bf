import { useEffect, useRef, useState } from "preact/hooks";
import { address, askedIn, asking, lookIn } from "./asked";
import type { Asked, Choices, Example } from "./asked";
import { Fields } from "./Fields";
import { firstLook, fitting, Page } from "./Page";
import type { Look } from "./Page";
import type { View } from "./types";

const PAUSE = 60; // milliseconds after a keystroke before anything is asked

interface Answer {
  view?: View;
  errors?: Record<string, string>;
}

/** The page that answers while typing. The last good answer stays while something is wrong. */
export function Explore() {
  const [choices, setChoices] = useState<Choices | null>(null);
  const [asked, setAsked] = useState<Asked | null>(() => askedIn(location.search));
  const [view, setView] = useState<View | null>(null);
  const [look, setLook] = useState<Look | null>(null);
  const [errors, setErrors] = useState<Record<string, string>>({});
  const [waiting, setWaiting] = useState(false);
  const wanted = useRef<Partial<Look>>(lookIn(location.search));

  useEffect(() => {
    void fetch("api/choices")
      .then((response) => response.json() as Promise<Choices>)
      .then((found) => {
        setChoices(found);
        setAsked((before) => before ?? asking({ ...found.start }));
      })
      .catch((error: unknown) => setErrors({ "": `The server does not answer: ${String(error)}` }));
    const back = () => {
      wanted.current = lookIn(location.search);
      setAsked((before) => askedIn(location.search) ?? before);
    };
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, []);

  useEffect(() => {
    if (!asked) return undefined;
    const ended = new AbortController();
    setWaiting(true); // from the first keystroke on: what is chosen before the answer comes is lost
    const timer = setTimeout(() => {
      ask(asked, ended.signal)
        .then((answer) => {
          setErrors(answer.errors ?? {});
          const found = answer.view;
          if (found) {
            setView(found);
            setLook((before) => {
              const first = { ...firstLook(found), ...(before ? { links: before.links, device: before.device } : {}) };
              const next = fitting({ ...first, ...wanted.current }, found);
              wanted.current = {};
              return next;
            });
          }
          setWaiting(false);
        })
        .catch((error: unknown) => {
          if (ended.signal.aborted) return;
          setErrors({ "": `The server does not answer: ${String(error)}` });
          setWaiting(false);
        });
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [asked]);

  useEffect(() => {
    if (asked && look) history.replaceState(null, "", address(asked, look));
  }, [asked, look]);

  if (!choices || !asked) return <p class="page">{errors[""] ?? "…"}</p>;
  const stale = Object.keys(errors).length > 0;
  const choose = (example: Example) =>
    setAsked({
      ...asked,
      system: example.system,
      axes: example.axes,
      reductions: example.reductions || asked.reductions,
      workload: example.workload,
      constraints: "",
      choose: "",
    });
  return (
    <div class="explore">
      <Fields choices={choices} asked={asked} errors={errors} onAsked={setAsked} onExample={choose} />
      <main class={stale || waiting ? "page stale" : "page"} aria-busy={waiting}>
        {stale && view && <p class="last">This is the last good answer; what is asked now has none.</p>}
        {view && look && <Page view={view} look={look} onLook={(change) => setLook({ ...look, ...change })} />}
      </main>
    </div>
  );
}

async function ask(asked: Asked, signal: AbortSignal): Promise<Answer> {
  const response = await fetch("api/view", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(asked),
    signal,
  });
  return (await response.json()) as Answer;
}
