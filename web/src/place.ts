// Where devices are: their digits in the levels, their coordinates on the axes, and who is in a group with whom.
// The placement matrix means here what src/meshwright/placement/placement.py says.

import type { Plan, View } from "./types";

/** The digits of a number in mixed radix: device 37 of 4 nodes with 16 GPUs each is GPU 5 of node 2. */
export function digitsOf(number: number, radices: number[]): number[] {
  const found: number[] = [];
  for (const radix of [...radices].reverse()) {
    found.push(number % radix);
    number = Math.floor(number / radix);
  }
  return found.reverse();
}

export function numberOf(digits: number[], radices: number[]): number {
  return digits.reduce((number, digit, k) => number * radices[k]! + digit, 0);
}

/** A device's coordinate on each axis of a plan, in the order of the plan's axes. */
export function coordinates(plan: Plan, counts: number[], device: number): number[] {
  const split = digitsOf(device, counts).map((position, level) =>
    digitsOf(
      position,
      plan.matrix.map((row) => row[level]!),
    ),
  );
  return plan.matrix.map((row, axis) =>
    numberOf(
      split.map((digits) => digits[axis]!),
      row,
    ),
  );
}

export interface Device {
  number: number;
  digits: number[];
  coordinates: number[];
}

/** The devices that are drawn, with their coordinates under a plan. */
export function devices(view: View, plan: Plan): Device[] {
  const counts = view.system.levels.map((level) => level.count);
  const drawn = view.system.levels.map((level) => level.drawn);
  const total = drawn.reduce((product, count) => product * count, 1);
  return Array.from({ length: total }, (_, k) => {
    const digits = digitsOf(k, drawn);
    const number = numberOf(digits, counts);
    return { number, digits, coordinates: coordinates(plan, counts, number) };
  });
}

/** Whether two devices are in the same group of some axes: they agree on all others. */
export function together(plan: Plan, axes: string[], one: Device, other: Device): boolean {
  return plan.axes.every((axis, k) => axes.includes(axis) || one.coordinates[k] === other.coordinates[k]);
}

/** A device's place in words: "node 1, gpu 4". */
export function where(view: View, device: Device): string {
  return view.system.levels.map((level, k) => `${level.name} ${device.digits[k]}`).join(", ");
}

/** Where the groups of an axis are, in words: "2 node × 2 gpu", or "4 gpu inside one node". */
export function spread(view: View, row: number[]): string {
  const names = view.system.levels.map((level) => level.name);
  const spanned = row.map((factor, k) => ({ factor, k })).filter(({ factor }) => factor > 1);
  const first = spanned[0];
  if (!first) return "a single device";
  const text = spanned.map(({ factor, k }) => `${factor} ${names[k]}${factor > 1 ? "s" : ""}`).join(" × ");
  return first.k > 0 ? `${text} inside one ${names[first.k - 1]}` : `${text}`;
}
