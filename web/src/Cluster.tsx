import { useMemo, useState } from "preact/hooks";
import { draw } from "./boxes";
import type { Box, Drawing } from "./boxes";
import { percent } from "./format";
import { useWidth } from "./hooks";
import { colour, heatColour } from "./palette";
import { devices, together, where } from "./place";
import type { Device } from "./place";
import type { Plan, View } from "./types";

interface Props {
  view: View;
  plan: Plan;
  axis: string;
  /** For each level, the share of the time that its links are busy; null: not shown. */
  heat: number[] | null;
  device: number;
  onDevice: (number: number) => void;
  label: string;
}

/** The system as boxes in boxes; every device has the colour of its coordinate on the axis. */
export function Cluster({ view, plan, axis, heat, device, onDevice, label }: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const [lit, setLit] = useState(false);
  const all = useMemo(() => devices(view, plan), [view, plan]);
  const drawn = view.system.levels.map((level) => level.drawn);
  const drawing = useMemo(() => (width ? draw(drawn, width - 2) : null), [drawn.join(), width]);
  const row = Math.max(0, plan.axes.indexOf(axis));
  const size = plan.matrix[row]!.reduce((product, factor) => product * factor, 1);
  const at = Math.max(
    0,
    all.findIndex((each) => each.number === device),
  );
  const current = all[at]!;
  const members = all.map((each, k) => ({ each, k })).filter(({ each }) => together(plan, [axis], current, each));

  const step = (event: KeyboardEvent) => {
    const across = drawing ? acrossOf(drawing) : 1;
    const moves: Record<string, number> = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: across,
      ArrowUp: -across,
      Home: -at,
      End: all.length - 1 - at,
    };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    onDevice(all[Math.max(0, Math.min(all.length - 1, at + move))]!.number);
  };
  const point = (event: Event) => {
    const found = (event.target as Element).getAttribute?.("data-device");
    if (found !== null && found !== undefined) onDevice(Number(found));
  };

  return (
    <div class="cluster">
      <div
        ref={ref}
        class={lit ? "drawing lit" : "drawing"}
        role="application"
        aria-roledescription="drawing of the system"
        aria-label={`${label}. Arrow keys go from device to device.`}
        tabIndex={0}
        onKeyDown={step}
        onFocus={() => setLit(true)}
        onBlur={() => setLit(false)}
        onMouseLeave={() => setLit(false)}
        onMouseOver={(event) => {
          setLit(true);
          point(event);
        }}
        onClick={point}
      >
        {drawing && (
          <svg
            viewBox={`0 0 ${drawing.width} ${drawing.height}`}
            width={drawing.width}
            height={drawing.height}
            aria-hidden="true"
          >
            <Boxes drawing={drawing} view={view} heat={heat} />
            <g class="devices">
              <Cells drawing={drawing} all={all} row={row} size={size} heat={heat} />
            </g>
            <g class="group">
              {members.map(({ each, k }) => (
                <Member
                  box={drawing.devices[k]!}
                  value={each.coordinates[row]!}
                  size={size}
                  cell={drawing.cell}
                  current={k === at}
                />
              ))}
            </g>
          </svg>
        )}
      </div>
      <p class="status" aria-live="polite">
        <strong>Device {current.number}</strong> ({where(view, current)}):{" "}
        {plan.axes.map((name, k) => `${name} ${current.coordinates[k]}`).join(", ")}. Its {axis} group:{" "}
        {listed(members.map(({ each }) => each.number), size)}
      </p>
    </div>
  );
}

/** How many devices stand beside each other in the first row of a box. */
function acrossOf(drawing: Drawing): number {
  const top = drawing.devices[0]?.y;
  const parent = drawing.devices[0]?.digits.slice(0, -1).join();
  return drawing.devices.filter((box) => box.y === top && box.digits.slice(0, -1).join() === parent).length || 1;
}

function listed(numbers: number[], size: number): string {
  const few = numbers.slice(0, 8).join(", ");
  return size > Math.min(8, numbers.length) ? `${few}, … (${size} devices)` : `${few}.`;
}

function Boxes({ drawing, view, heat }: { drawing: Drawing; view: View; heat: number[] | null }) {
  return (
    <g class="boxes">
      {drawing.boxes.map((box) => {
        const level = view.system.levels[box.level]!;
        const share = heat?.[box.level] ?? 0;
        const name = `${level.name} ${box.digits[box.level]}`;
        const fits = drawing.cell >= 14 && box.width > name.length * 6 + 12;
        return (
          <g>
            <rect class="box" x={box.x} y={box.y} width={box.width} height={box.height} rx="5" />
            {heat && level.count > 1 && <Port box={box} share={share} />}
            {fits && (
              <text class="name" x={box.x + 7} y={box.y + 16}>
                {name}
              </text>
            )}
          </g>
        );
      })}
    </g>
  );
}

/** The port of a box to its siblings: thicker and darker, the more of the time it is busy. */
function Port({ box, share }: { box: Box; share: number }) {
  const height = 1.5 + 5 * share;
  return (
    <rect class="port" x={box.x} y={box.y} width={box.width} height={height} rx="1" fill={heatColour(share).fill} />
  );
}

function Cells({
  drawing,
  all,
  row,
  size,
  heat,
}: {
  drawing: Drawing;
  all: Device[];
  row: number;
  size: number;
  heat: number[] | null;
}) {
  const last = heat ? heat[heat.length - 1]! : 0;
  return useMemo(
    () =>
      drawing.devices.map((box, k) => {
        const device = all[k]!;
        const value = device.coordinates[row]!;
        return (
          <g>
            <rect
              data-device={device.number}
              x={box.x}
              y={box.y}
              width={box.width}
              height={box.height}
              rx={drawing.cell / 8}
              fill={colour(value, size).fill}
            />
            <Value box={box} value={value} size={size} cell={drawing.cell} />
            {heat && drawing.cell >= 9 && (
              <rect
                class="port"
                x={box.x}
                y={box.y}
                width={box.width}
                height={1 + (drawing.cell / 7) * last}
                fill={heatColour(last).fill}
              />
            )}
          </g>
        );
      }),
    [drawing, all, row, size, last, heat !== null],
  );
}

interface CellProps {
  box: Box;
  value: number;
  size: number;
  cell: number;
}

/** A coordinate as a number, where there is room for it. */
function Value({ box, value, size, cell }: CellProps) {
  if (cell < 14) return null;
  return (
    <text
      class="value"
      x={box.x + box.width / 2}
      y={box.y + box.height / 2}
      fill={colour(value, size).text}
      font-size={Math.min(13, cell / (String(size - 1).length > 2 ? 2.6 : 2))}
    >
      {value}
    </text>
  );
}

/** A device of the group that is lit. */
function Member({ current, ...cell }: CellProps & { current: boolean }) {
  const { box, value, size } = cell;
  return (
    <g>
      <rect
        class={current ? "current" : "member"}
        x={box.x - 1}
        y={box.y - 1}
        width={box.width + 2}
        height={box.height + 2}
        rx={box.width / 7}
        fill={colour(value, size).fill}
      />
      <Value {...cell} />
    </g>
  );
}

/** What the colours mean: the coordinates of the axis, and how busy the links of each level are. */
export function Legend({ view, plan, axis, heat }: { view: View; plan: Plan; axis: string; heat: number[] | null }) {
  const row = plan.matrix[Math.max(0, plan.axes.indexOf(axis))]!;
  const size = row.reduce((product, factor) => product * factor, 1);
  const some = size <= 16 ? Array.from({ length: size }, (_, k) => k) : [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * (size - 1)));
  return (
    <div class="legend">
      <ul aria-label={`Colours: coordinates on ${axis}`}>
        <li class="what">{axis}</li>
        {some.map((value) => {
          const { fill, text } = colour(value, size);
          return (
            <li class="chip" style={{ background: fill, color: text }}>
              {value}
            </li>
          );
        })}
      </ul>
      {heat && (
        <ul aria-label="Links: share of the time that they are busy">
          <li class="what">links busy</li>
          {view.system.levels.map((level, k) =>
            level.count > 1 ? (
              <li class="chip wide" style={{ background: heatColour(heat[k]!).fill, color: heatColour(heat[k]!).text }}>
                {level.name} {percent(heat[k]!)}
              </li>
            ) : null,
          )}
        </ul>
      )}
    </div>
  );
}
