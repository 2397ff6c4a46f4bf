import { seconds, times } from "./format";
import { labelOf } from "./Matrix";
import type { View } from "./types";

interface Props {
  view: View;
  chosen: number;
  onChoose: (number: number) => void;
}

/** The candidates as bars: the plan's time, that of the library's own collectives behind it, and the bound as a mark. */
export function Candidates({ view, chosen, onChoose }: Props) {
  const most = Math.max(...view.plans.map((plan) => Math.max(plan.seconds, plan.default_seconds)), 1e-30);
  const share = (value: number) => `${(100 * value) / most}%`;
  return (
    <section aria-labelledby="candidates">
      <h2 id="candidates">Candidates</h2>
      <p class="hint">
        <span class="key plan" /> predicted <span class="key own" /> with the library’s own collectives{" "}
        <span class="key bound" /> no schedule can beat
        <br />
        For each axis: {view.system.levels.map((level) => level.name).join(" × ")}
      </p>
      <fieldset class="candidates">
        <legend class="hidden">Which placement is shown</legend>
        {view.plans.map((plan, k) => (
          <label class={k === chosen ? "candidate chosen" : "candidate"}>
            <input type="radio" name="candidate" checked={k === chosen} onChange={() => onChoose(k)} />
            <span class="what">
              <span class="rank">{k + 1}</span>
              <span class="rows">{labelOf(view, plan)}</span>
              {k === view.chosen && <span class="tag">this plan</span>}
            </span>
            <span class="track" aria-hidden="true">
              <span class="own" style={{ width: share(plan.default_seconds) }} />
              <span class="bar" style={{ width: share(plan.seconds) }} />
              <span class="mark" style={{ left: share(plan.bound_seconds) }} />
            </span>
            <span class="figures">
              <b>{seconds(plan.seconds)}</b>
              <span class="hidden">
                , with the library’s own collectives {seconds(plan.default_seconds)}, bound {seconds(plan.bound_seconds)}
              </span>
              <small>{plan.bound_seconds ? `${times(plan.seconds / plan.bound_seconds)} bound` : ""}</small>
            </span>
          </label>
        ))}
      </fieldset>
      {view.certificate && <p class="hint">{view.certificate}</p>}
    </section>
  );
}
