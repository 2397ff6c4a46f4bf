import { useMemo, useState } from "preact/hooks";
import { seconds } from "./format";
import { amounts, cuts, filled, heldBy, segments, told } from "./hold";
import { useTicks } from "./hooks";
import { stepColour } from "./palette";
import { digitsOf } from "./place";
import type { Communication, Held, View } from "./types";

const MOST = 64;
const TILE = 46;

interface Props {
  view: View;
  one: Communication;
  flow: number;
  /** The step whose result is shown; null: the start. */
  step: number | null;
  onStep: (flow: number, step: number | null) => void;
}

/** The data step by step: what each device of a group holds, and how many have contributed to it. */
export function Playback({ view, one, flow, step, onStep }: Props) {
  const [playing, setPlaying] = useState(false);
  const steps = one.flows[flow]!.steps;
  const states = one.flows[flow]!.states;
  const at = step === null ? 0 : step + 1;
  const go = (state: number) => onStep(flow, state <= 0 ? null : Math.min(state, steps.length) - 1);
  useTicks(playing, 1100, () => {
    if (at >= steps.length) setPlaying(false);
    else go(at + 1);
  });
  if (!steps.length) return null;
  const state = states[at];
  return (
    <div class="playback">
      <div class="controls">
        <button type="button" onClick={() => go(at - 1)} disabled={at === 0} aria-label="Previous step">
          ◀
        </button>
        <button
          type="button"
          disabled={!states.length}
          onClick={() => {
            if (!playing && at >= steps.length) go(0);
            setPlaying(!playing);
          }}
        >
          {playing ? "Pause" : "Play"}
        </button>
        <button type="button" onClick={() => go(at + 1)} disabled={at >= steps.length} aria-label="Next step">
          ▶
        </button>
        {one.flows.length > 1 && (
          <label>
            program{" "}
            <select value={flow} onChange={(event) => onStep(Number(event.currentTarget.value), null)}>
              {one.flows.map((_, k) => (
                <option value={k}>
                  {k + 1}, {one.order.filter((each) => each === k).length} of {one.order.length} chunks
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      <ol class="steps">
        <li>
          <button type="button" aria-pressed={at === 0} onClick={() => go(0)}>
            <span class="dot" />
            start
          </button>
        </li>
        {steps.map((each, k) => (
          <li>
            <button type="button" aria-pressed={at === k + 1} onClick={() => go(k + 1)}>
              <span class="dot" style={{ background: stepColour(k + flow * 3).fill }} />
              {each.text}
              <small>
                {seconds(each.seconds)}, {each.algorithm}
              </small>
            </button>
          </li>
        ))}
      </ol>
      {state && (
        <>
          <p class="told" aria-live="polite">
            {told(state, one)}
          </p>
          <Group view={view} one={one} states={states} state={state} />
        </>
      )}
    </div>
  );
}

function Group({ view, one, states, state }: { view: View; one: Communication; states: Held[][]; state: Held[] }) {
  const size = one.radices.reduce((product, radix) => product * radix, 1);
  const cut = useMemo(() => cuts(states), [states]);
  const inner = one.radices[one.radices.length - 1] ?? 1;
  const shown = Math.min(size, MOST);
  const names = one.levels.map((level) => view.system.levels[level]!.name);
  return (
    <figure>
      <div class="tiles" style={{ "--across": String(Math.min(inner, 8)) }}>
        {Array.from({ length: shown }, (_, number) => (
          <Tile number={number} one={one} state={state} cut={cut} size={size} />
        ))}
      </div>
      <figcaption class="hint">
        One group, numbered by {names.join(", ") || "device"}
        {size > shown ? `: the first ${shown} of its ${size.toLocaleString("en")} devices` : ""}. The width is the payload, cut
        into its parts; a part fills up with the contributions that it contains, each doubling by the same height.
      </figcaption>
    </figure>
  );
}

interface TileProps {
  number: number;
  one: Communication;
  state: Held[];
  cut: number;
  size: number;
}

function Tile({ number, one, state, cut, size }: TileProps) {
  const digits = digitsOf(number, one.radices);
  const held = heldBy(state, digits);
  const parts = segments(held, digits, one.radices, cut);
  const { contributors } = amounts(held, one.radices);
  const wide = TILE / parts.length;
  const whole = TILE * 0.62;
  const height = whole * filled(contributors, size);
  const path = parts
    .map((holds, k) => (holds ? `M${k * wide} ${whole}h${wide}v${-height}h${-wide}z` : ""))
    .join("");
  return (
    <div class="tile">
      <svg viewBox={`0 0 ${TILE} ${whole}`} width={TILE} height={whole} aria-hidden="true">
        <rect class="empty" width={TILE} height={whole} rx="2" />
        <path class={contributors === size ? "held all" : "held"} d={path} />
      </svg>
      <small>{digits.join(".")}</small>
    </div>
  );
}
