import { faster, plural, seconds, times } from "./format";
import type { Plan, View } from "./types";

function Rung({ name, value, most, kind }: { name: string; value: number; most: number; kind: string }) {
  return (
    <div class={`rung ${kind}`}>
      <dt>{name}</dt>
      <dd>
        <span class="track" aria-hidden="true">
          <span class="bar" style={{ width: `${most ? (100 * value) / most : 0}%` }} />
        </span>
        <span class="value">{seconds(value)}</span>
      </dd>
    </div>
  );
}

/** The answer in one look: what the plan takes, beside what it is to be compared with. */
export function Verdict({ view, plan }: { view: View; plan: Plan }) {
  const given = view.as_given_seconds;
  const most = Math.max(plan.seconds, plan.default_seconds, given ?? 0);
  const gap = plan.bound_seconds ? plan.seconds / plan.bound_seconds : 1;
  const sizes = view.axes.map((axis) => `${axis.name} ${axis.size}`).join(" × ");
  return (
    <header class="verdict">
      <div>
        <p class="eyebrow">
          {view.system.name} · {plural(view.system.devices, "device")} · library {view.library}
        </p>
        <h1>{sizes}</h1>
        <p class="lead">
          <strong>{seconds(plan.seconds)}</strong> of communication per step, predicted.{" "}
          {given !== null && `${capital(faster(given, plan.seconds, "the usual mesh"))}; `}
          {gap < 1.005 ? "no schedule on these links can be faster." : `${times(gap)} the least that is possible.`}
        </p>
      </div>
      <dl class="ladder">
        <Rung name="No schedule can beat" value={plan.bound_seconds} most={most} kind="bound" />
        <Rung name="This plan" value={plan.seconds} most={most} kind="plan" />
        <Rung name="Same placement, library’s own collectives" value={plan.default_seconds} most={most} kind="own" />
        {given !== null && (
          <Rung name="Usual mesh, library’s own collectives" value={given} most={most} kind="own" />
        )}
      </dl>
    </header>
  );
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
