import { useMemo } from "preact/hooks";
import { bytes, percent, plural, seconds } from "./format";
import { useWidth } from "./hooks";
import { stepColour } from "./palette";
import { bars, MOST, ticks } from "./timeline";
import type { Communication, View } from "./types";

const ROW = 22;
const LEFT = 74;

interface Props {
  view: View;
  one: Communication;
  flow: number;
  step: number | null;
  onStep: (flow: number, step: number) => void;
}

/** A communication in time, by level: which chunk is in which step, and how busy the links are meanwhile. */
export function Timeline({ view, one, flow, step, onStep }: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const found = useMemo(() => bars(one), [one]);
  const end = Math.max(one.seconds, one.measured?.seconds ?? 0);
  const levels = view.system.levels.map((level, k) => ({ level, k })).filter(({ k }) => found.some((bar) => bar.level === k));
  let top = 4;
  const rows = levels.map(({ level, k }) => {
    const lanes = 1 + Math.max(...found.filter((bar) => bar.level === k).map((bar) => bar.lane));
    const row = { level, k, top, lanes };
    top += lanes * (ROW + 2) + 8;
    return row;
  });
  const measuredTop = top;
  if (one.measured) top += ROW + 10;
  const height = top + 20;
  const room = Math.max(120, width - LEFT - 12);
  const x = (at: number) => LEFT + (end ? (at / end) * room : 0);
  const chunks = one.order.length;
  if (!found.length) return <p class="hint">{one.why}.</p>;
  return (
    <div class="timeline" ref={ref}>
      <svg viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={spoken(one, chunks)}>
        {ticks(end, Math.max(2, room / 90)).map((at) => (
          <g class="tick">
            <line x1={x(at)} x2={x(at)} y1={2} y2={height - 18} />
            <text x={x(at)} y={height - 5}>
              {seconds(at)}
            </text>
          </g>
        ))}
        {one.measured && (
          <g>
            <text class="level" x={LEFT - 8} y={measuredTop + ROW / 2 + 3}>
              measured
            </text>
            <rect class="measured" x={LEFT} y={measuredTop} width={x(one.measured.seconds) - LEFT} height={ROW} rx="2" />
            <text class="chunk" x={LEFT + 8} y={measuredTop + ROW / 2}>
              {seconds(one.measured.seconds)}, all of it
            </text>
          </g>
        )}
        {rows.map((row) => (
          <g>
            <text class="level" x={LEFT - 8} y={row.top + (row.lanes * (ROW + 2)) / 2 + 3}>
              {row.level.name}
            </text>
            {found
              .filter((bar) => bar.level === row.k)
              .map((bar) => {
                const { fill } = stepColour(bar.step + bar.flow * 3);
                const left = x(bar.start);
                const wide = Math.max(0.8, x(bar.end) - left - 0.8);
                const y = row.top + bar.lane * (ROW + 2);
                const full = ROW * bar.busy;
                const dim = step !== null && (bar.step !== step || bar.flow !== flow);
                return (
                  <g class={dim ? "bar dim" : "bar"} onClick={() => onStep(bar.flow, bar.step)}>
                    <title>
                      {`${chunks > 1 ? `chunk ${bar.chunk + 1} of ${chunks}: ` : ""}${one.flows[bar.flow]!.steps[bar.step]!.text}, ` +
                        `${seconds(bar.start)} to ${seconds(bar.end)}; busiest ${row.level.name} link ${percent(bar.busy)} busy, ${bytes(bar.bytes)}`}
                    </title>
                    <rect class="whole" x={left} y={y} width={wide} height={ROW} rx="2" fill={fill} />
                    <rect x={left} y={y + ROW - full} width={wide} height={full} rx="2" fill={fill} />
                    {chunks > 1 && wide > 16 && (
                      <text class="chunk" x={left + wide / 2} y={y + ROW / 2}>
                        {bar.chunk + 1}
                      </text>
                    )}
                  </g>
                );
              })}
          </g>
        ))}
      </svg>
      <p class="hint">
        {chunks > 1
          ? `${plural(chunks, "chunk")}, a new one every ${seconds(one.period)}${chunks > MOST ? `; the first ${MOST} are drawn` : ""}. `
          : ""}
        The filled part of a bar is how busy the links of the level are.
      </p>
    </div>
  );
}

function spoken(one: Communication, chunks: number): string {
  const steps = one.flows.flatMap((flow) => flow.steps.map((each) => `${each.text}, ${seconds(each.seconds)}`));
  return `Timeline: ${plural(chunks, "chunk")} through ${steps.join("; ")}; ${seconds(one.seconds)} in all`;
}
