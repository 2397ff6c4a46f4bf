import { spread } from "./place";
import type { Plan, View } from "./types";

/** The placement matrix: a row per axis, a column per level; and where the groups of each axis are, in words. */
export function Matrix({ view, plan, axis, title }: { view: View; plan: Plan; axis: string; title: string }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`Matrix of ${title}`}>
      <table class="matrix">
        <caption>Placement matrix: over how many children of a level each axis is spread</caption>
        <thead>
          <tr>
            <th scope="col">axis</th>
            {view.system.levels.map((level) => (
              <th scope="col" class="number" title={level.link}>
                {level.name} <small>{level.count.toLocaleString("en")}</small>
              </th>
            ))}
            <th scope="col">a group is</th>
          </tr>
        </thead>
        <tbody>
          {plan.axes.map((name, k) => {
            const row = plan.matrix[k]!;
            return (
              <tr class={name === axis ? "chosen" : ""}>
                <th scope="row">
                  {name} <small>{row.reduce((product, factor) => product * factor, 1)}</small>
                </th>
                {row.map((factor) => (
                  <td class={factor > 1 ? "number spread" : "number"}>{factor}</td>
                ))}
                <td>{spread(view, row)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** What tells the plans of a view apart: their placements, or their programs where they share one placement. */
export function labelOf(view: View, plan: Plan): string {
  const texts = new Set(view.plans.map(matrixText));
  const first = plan.communications[0];
  return texts.size < view.plans.length && first ? `${matrixText(plan)}: ${first.program}` : matrixText(plan);
}

function matrixText(plan: Plan): string {
  return plan.axes.map((axis, k) => `${axis} ${plan.matrix[k]!.join("×")}`).join(", ");
}
