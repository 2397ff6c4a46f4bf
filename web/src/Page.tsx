import { useState } from "preact/hooks";
import { Advice } from "./Advice";
import { Candidates } from "./Candidates";
import { Cluster, Legend } from "./Cluster";
import { Communications, titleOf } from "./Communications";
import { faster, seconds } from "./format";
import { labelOf, Matrix } from "./Matrix";
import { Playback } from "./Playback";
import { Sizes } from "./Sizes";
import { Snippets } from "./Snippets";
import { Timeline } from "./Timeline";
import { heat } from "./timeline";
import type { Communication, Plan, View } from "./types";
import { Verdict } from "./Verdict";

/** What is looked at; the rest of the page follows from it and from the view. */
export interface Look {
  plan: number;
  beside: number | null;
  axis: string;
  communication: number;
  flow: number;
  step: number | null;
  links: boolean;
  device: number;
}

export function firstLook(view: View): Look {
  const plan = view.plans[view.chosen]!;
  const weights = plan.communications.map((one) => one.seconds * one.count * (1 - one.hidden));
  const communication = weights.indexOf(Math.max(...weights));
  const axis = plan.communications[communication]!.axes[0] ?? plan.axes[0]!;
  return { plan: view.chosen, beside: null, axis, communication, flow: 0, step: null, links: true, device: 0 };
}

/** A look that fits a view: what the view does not have is replaced by the first of its kind. */
export function fitting(look: Look, view: View): Look {
  const first = firstLook(view);
  const plan = look.plan < view.plans.length ? look.plan : view.chosen;
  const communication = look.communication < view.plans[plan]!.communications.length ? look.communication : 0;
  const flows = view.plans[plan]!.communications[communication]!.flows;
  const flow = look.flow < flows.length ? look.flow : 0;
  return {
    plan,
    beside: look.beside !== null && look.beside < view.plans.length ? look.beside : null,
    axis: view.axes.some((axis) => axis.name === look.axis) ? look.axis : first.axis,
    communication,
    flow,
    step: look.step !== null && look.step < flows[flow]!.steps.length ? look.step : null,
    links: look.links,
    device: look.device < view.system.devices ? look.device : 0,
  };
}

export function Report({ view }: { view: View }) {
  const [look, setLook] = useState(() => firstLook(view));
  return (
    <main class="page">
      <Page view={view} look={look} onLook={(change) => setLook({ ...look, ...change })} />
    </main>
  );
}

interface Props {
  view: View;
  look: Look;
  onLook: (change: Partial<Look>) => void;
}

export function Page({ view, look, onLook }: Props) {
  const plan = view.plans[look.plan]!;
  const one = plan.communications[look.communication]!;
  return (
    <>
      <Verdict view={view} plan={plan} />
      {view.sizes && <Sizes sizes={view.sizes} />}
      <Placements view={view} look={look} onLook={onLook} plan={plan} one={one} />
      <Candidates
        view={view}
        chosen={look.plan}
        onChoose={(number) => onLook(fitting({ ...look, plan: number, step: null, flow: 0 }, view))}
      />
      <section aria-labelledby="programs">
        <h2 id="programs">Programs</h2>
        <Communications
          plan={plan}
          chosen={look.communication}
          onChoose={(number) => onLook({ communication: number, flow: 0, step: null })}
        />
        <Program view={view} look={look} onLook={onLook} one={one} />
      </section>
      <Advice view={view} />
      <Snippets view={view} />
      <footer>
        {view.notes.map((note) => (
          <p>{note}</p>
        ))}
        <p>Times are predictions of Meshwright’s cost model, unless they are said to be measured.</p>
      </footer>
    </>
  );
}

function Placements({ view, look, onLook, plan, one }: Props & { plan: Plan; one: Communication }) {
  const levels = view.system.levels.length;
  const drawn = view.system.levels.reduce((product, level) => product * level.drawn, 1);
  const other = look.beside === null ? null : view.plans[look.beside]!;
  const loads = (of: Communication) =>
    look.links && of.flows[look.flow] ? heat(of, levels, look.flow, stepOf(of, look)) : null;
  const shown = [
    { plan, one, title: `Placement ${look.plan + 1}` },
    ...(other
      ? [{ plan: other, one: other.communications[look.communication]!, title: `Placement ${look.beside! + 1}, beside it` }]
      : []),
  ];
  return (
    <section aria-labelledby="placement">
      <h2 id="placement">Placement</h2>
      <div class="choices">
        <fieldset>
          <legend>colour by</legend>
          {view.axes.map((axis) => (
            <label class="pill">
              <input
                type="radio"
                name="axis"
                checked={axis.name === look.axis}
                onChange={() => onLook({ axis: axis.name })}
              />
              <span>{axis.name}</span>
            </label>
          ))}
        </fieldset>
        <label class="check">
          <input
            type="checkbox"
            checked={look.links}
            onChange={(event) => onLook({ links: event.currentTarget.checked })}
          />
          link loads
        </label>
        {view.plans.length > 1 && (
          <label class="check">
            beside{" "}
            <select
              value={look.beside ?? ""}
              onChange={(event) =>
                onLook({ beside: event.currentTarget.value === "" ? null : Number(event.currentTarget.value) })
              }
            >
              <option value="">nothing</option>
              {view.plans.map((each, k) => (
                <option value={k}>
                  {k + 1}: {labelOf(view, each)}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      <div class={other ? "beside two" : "beside"}>
        {shown.map((each) => (
          <div class="shown">
            {other && (
              <h3>
                {each.title}: {seconds(each.plan.seconds)}
              </h3>
            )}
            <Cluster
              view={view}
              plan={each.plan}
              axis={look.axis}
              heat={loads(each.one)}
              device={look.device}
              onDevice={(device) => onLook({ device })}
              label={`${each.title}, coloured by ${look.axis}`}
            />
            <div class="facts">
              <Legend view={view} plan={each.plan} axis={look.axis} heat={loads(each.one)} />
              <Matrix view={view} plan={each.plan} axis={look.axis} title={each.title} />
              {drawn < view.system.devices && (
                <p class="hint">
                  Drawn are {drawn.toLocaleString("en")} of {view.system.devices.toLocaleString("en")} devices: the first{" "}
                  {view.system.levels
                    .filter((level) => level.drawn < level.count)
                    .map((level) => `${level.drawn} of ${level.count.toLocaleString("en")} of level ${level.name}`)
                    .join(", ")}
                  . The others repeat them.
                </p>
              )}
              {look.links && !other && (
                <p class="hint">
                  The top edge of a box is its link to its siblings: how busy it is during {during(one, look)}.
                </p>
              )}
            </div>
          </div>
        ))}
      </div>
    </section>
  );
}

function during(one: Communication, look: Look): string {
  const step = stepOf(one, look);
  const title = titleOf(one);
  return step === null ? title : `step ${step + 1} of ${title}, ${one.flows[look.flow]!.steps[step]!.text}`;
}

/** The step that is looked at, where a communication has it. */
function stepOf(one: Communication, look: Look): number | null {
  const steps = one.flows[look.flow]?.steps ?? [];
  return look.step !== null && look.step < steps.length ? look.step : null;
}

function Program({ view, look, onLook, one }: Props & { one: Communication }) {
  const seen = one.measured;
  return (
    <div class="program">
      <h3>{titleOf(one)}, in time</h3>
      <p>
        {seconds(one.seconds)} each: {one.why}.{" "}
        {seen &&
          `Measured on ${seen.engine}: ${seconds(seen.seconds)}` +
            (seen.default_seconds === null ? "." : `, ${faster(seen.default_seconds, seen.seconds, "the library’s own")}.`)}
      </p>
      <Timeline
        view={view}
        one={one}
        flow={look.flow}
        step={look.step}
        onStep={(flow, step) => onLook({ flow, step })}
      />
      <Playback
        view={view}
        one={one}
        flow={look.flow}
        step={look.step}
        onStep={(flow, step) => onLook({ flow, step })}
      />
    </div>
  );
}
