// A communication in time: which chunk uses the links of which level when, as predicted.

import type { Communication } from "./types";

export interface Bar {
  chunk: number;
  flow: number;
  step: number;
  level: number;
  lane: number;
  start: number;
  end: number;
  /** The share of this time that the level's busiest link is busy. */
  busy: number;
  bytes: number;
}

/** How many chunks are drawn at most. */
export const MOST = 128;

/** The bars of all chunks; chunks begin a period after each other. Bars of a level that overlap are in different lanes. */
export function bars(one: Communication): Bar[] {
  const found: Bar[] = [];
  const ends = new Map<number, number[]>();
  one.order.slice(0, MOST).forEach((flow, chunk) => {
    let at = chunk * one.period;
    one.flows[flow]!.steps.forEach((step, number) => {
      at += step.call;
      for (const phase of step.phases) {
        for (const [level, seconds, bytes] of phase.loads) {
          if (!bytes) continue;
          const lanes = ends.get(level) ?? [];
          ends.set(level, lanes);
          let lane = lanes.findIndex((end) => end <= at + one.seconds * 1e-9);
          if (lane < 0) lane = lanes.length;
          lanes[lane] = at + phase.seconds;
          const busy = phase.seconds ? Math.min(1, seconds / phase.seconds) : 0;
          found.push({ chunk, flow, step: number, level, lane, start: at, end: at + phase.seconds, busy, bytes });
        }
        at += phase.seconds;
      }
    });
  });
  return found;
}

/** For each level, the share of the time that its busiest link is busy: in the whole communication, or in one step. */
export function heat(one: Communication, levels: number, flow: number, step: number | null): number[] {
  const busy = new Array<number>(levels).fill(0);
  const add = (f: number, s: number, weight: number) => {
    for (const phase of one.flows[f]!.steps[s]!.phases)
      for (const [level, seconds] of phase.loads) busy[level] = busy[level]! + seconds * weight;
  };
  if (step !== null) {
    add(flow, step, 1);
    const all = one.flows[flow]!.steps[step]!.seconds;
    return busy.map((seconds) => (all ? Math.min(1, seconds / all) : 0));
  }
  one.flows.forEach((each, f) => {
    const chunks = one.order.filter((number) => number === f).length;
    each.steps.forEach((_, s) => add(f, s, chunks));
  });
  return busy.map((seconds) => (one.seconds ? Math.min(1, seconds / one.seconds) : 0));
}

/** Round times for the ticks of an axis from 0 to `end`: about `count` of them. */
export function ticks(end: number, count: number): number[] {
  if (!(end > 0)) return [0];
  const rough = end / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough)! * power;
  const found: number[] = [];
  for (let k = 0; k * step <= end * 1.0001; k++) found.push(k * step);
  return found;
}

/** The powers of ten between two values, for an axis of logarithms. */
export function powers(least: number, most: number): number[] {
  const found: number[] = [];
  for (let power = Math.ceil(Math.log10(least)); 10 ** power <= most && found.length < 20; power++) found.push(10 ** power);
  return found;
}
