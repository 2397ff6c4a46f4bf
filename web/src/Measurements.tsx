import { seconds } from "./format";
import { useWidth } from "./hooks";
import { colour } from "./palette";
import { powers } from "./timeline";
import type { Accuracy } from "./types";

const EDGE = 62;

/** Measurements beside predictions: the figures, every program as a point, and the worst misses. */
export function Measurements({ view }: { view: Accuracy }) {
  return (
    <main class="page">
      <header>
        <p class="eyebrow">library {view.library}</p>
        <h1>{view.title}</h1>
      </header>
      <section aria-labelledby="points">
        <h2 id="points">Every program</h2>
        <Scatter view={view} />
      </section>
      <section aria-labelledby="figures">
        <h2 id="figures">Figures</h2>
        <table>
          <tbody>
            {view.figures.map(([name, value]) => (
              <tr>
                <th scope="row">{name}</th>
                <td class="number">{value}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {view.misses.length > 0 && (
        <section aria-labelledby="misses">
          <h2 id="misses">The worst misses</h2>
          <ul>
            {view.misses.map((miss) => (
              <li>{miss}</li>
            ))}
          </ul>
        </section>
      )}
      <footer>
        {view.notes.map((note) => (
          <p>{note}</p>
        ))}
      </footer>
    </main>
  );
}

function Scatter({ view }: { view: Accuracy }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const all = view.points.flatMap(([, measured, predicted]) => [measured, predicted]);
  const least = Math.min(...all) / 1.2;
  const most = Math.max(...all) * 1.2;
  const side = Math.max(220, Math.min(560, width));
  const share = (value: number) => Math.log(value / least) / Math.log(most / least);
  const x = (value: number) => EDGE + share(value) * (side - EDGE - 10);
  const y = (value: number) => side - 38 - share(value) * (side - 48);
  return (
    <div ref={ref}>
      <svg width={side} height={side} viewBox={`0 0 ${side} ${side}`} role="img" aria-label={`${view.title}: a point each`}>
        {powers(least, most).map((tick) => (
          <g class="tick">
            <line x1={x(tick)} x2={x(tick)} y1={y(least)} y2={y(most)} />
            <line x1={x(least)} x2={x(most)} y1={y(tick)} y2={y(tick)} />
            <text x={x(tick)} y={side - 24}>
              {seconds(tick)}
            </text>
            <text class="left" x={EDGE - 6} y={y(tick) + 4}>
              {seconds(tick)}
            </text>
          </g>
        ))}
        <line class="equal" x1={x(least)} y1={y(least)} x2={x(most)} y2={y(most)} />
        {view.points.map(([system, measured, predicted, what]) => (
          <circle cx={x(measured)} cy={y(predicted)} r="3.5" fill={colour(system, Math.max(2, view.systems.length)).fill}>
            <title>{`${what}. Measured ${seconds(measured)}, predicted ${seconds(predicted)}`}</title>
          </circle>
        ))}
        <text class="middle" x={(EDGE + side) / 2} y={side - 6}>
          measured
        </text>
        <text class="middle" transform={`translate(11 ${side / 2}) rotate(-90)`}>
          predicted
        </text>
      </svg>
      <div class="legend">
        <ul aria-label="Colours: systems">
          {view.systems.map((name, k) => {
            const { fill, text } = colour(k, Math.max(2, view.systems.length));
            return (
              <li class="chip" style={{ background: fill, color: text }}>
                {name}
              </li>
            );
          })}
        </ul>
        <p class="hint">On the line, both agree; above it, it took less than predicted.</p>
      </div>
    </div>
  );
}
