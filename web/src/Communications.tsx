import { percent, seconds } from "./format";
import type { Communication, Plan } from "./types";

export function titleOf(one: Communication): string {
  return one.name || `${one.goal} over ${one.axes.join("+")}`;
}

interface Props {
  plan: Plan;
  chosen: number;
  onChoose: (number: number) => void;
}

/** What is sent: a row for each communication, to choose which one is shown below. */
export function Communications({ plan, chosen, onChoose }: Props) {
  return (
    <fieldset class="communications">
      <legend class="hidden">Which communication is shown</legend>
      {plan.communications.map((one, k) => {
        const share = plan.seconds ? (one.seconds * one.count * (1 - one.hidden)) / plan.seconds : 0;
        return (
          <label class={k === chosen ? "communication chosen" : "communication"}>
            <input type="radio" name="communication" checked={k === chosen} onChange={() => onChoose(k)} />
            <span class="title">
              <b>{titleOf(one)}</b>
              <small>
                {one.name && `${one.goal} over ${one.axes.join("+")}, `}
                {one.size}
                {one.count > 1 && ` × ${one.count}`}
                {one.hidden > 0 && `, ${percent(one.hidden)} hidden`}
              </small>
            </span>
            <span class="figures">
              <b>{percent(share)}</b>
              <small>{seconds(one.seconds)} each</small>
            </span>
            <span class="steps-text">{one.program || "as the library does it"}</span>
          </label>
        );
      })}
    </fieldset>
  );
}
