import { seconds, times } from "./format";
import type { View } from "./types";

/** What would make the plan faster. */
export function Advice({ view }: { view: View }) {
  const plan = view.plans[view.chosen]!;
  return (
    <section aria-labelledby="advice">
      <h2 id="advice">What would help</h2>
      {view.advice.length === 0 && <p>Nothing that can be said of one level alone.</p>}
      <ul class="advice">
        {view.advice.map((each) => (
          <li>
            <span class="gain">{times(each.seconds ? plan.seconds / each.seconds : 1)}</span>
            <span>
              {each.change} <small>{seconds(each.seconds)} instead of {seconds(plan.seconds)}</small>
            </span>
          </li>
        ))}
      </ul>
      <ul class="why">
        {view.why.map((line) => (
          <li>{line}</li>
        ))}
      </ul>
    </section>
  );
}
