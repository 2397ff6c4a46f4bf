// What devices hold while a program runs, from the compact states of a view.

import { digitsOf } from "./place";
import type { Communication, Held } from "./types";

/** What a member of a group holds, by its digits in the group's hierarchy. */
export function heldBy(state: Held[], digits: number[]): Held {
  return state[digits.reduce((bits, digit, k) => bits | (Number(digit === 0) << k), 0)] ?? null;
}

function product(radices: number[], levels: number): number {
  return radices.reduce((size, radix, k) => ((levels >> k) & 1 ? size * radix : size), 1);
}

/** The share of the payload that is held, and the share of the group that has contributed to it. */
export function amounts(held: Held, radices: number[]): { share: number; contributors: number } {
  if (held === null) return { share: 0, contributors: 0 };
  return { share: 1 / product(radices, held[0]), contributors: product(radices, held[1]) };
}

/** How far a part is filled by some contributors of a group, from 0 to 1; each doubling adds the same. */
export function filled(contributors: number, size: number): number {
  return contributors ? (1 + Math.log2(contributors)) / (1 + Math.log2(size)) : 0;
}

/** Levels along which something is scattered at some time: the payload is drawn in as many segments as these make. */
export function cuts(states: Held[][]): number {
  return states.flat().reduce((bits, held) => bits | (held ? held[0] : 0), 0);
}

/** For each segment of the payload, whether a member holds it. What the innermost level scatters lies together. */
export function segments(held: Held, digits: number[], radices: number[], cut: number): boolean[] {
  const levels = radices.map((_, k) => k).filter((k) => (cut >> k) & 1).reverse();
  const sizes = levels.map((k) => radices[k]!);
  const count = sizes.reduce((all, size) => all * size, 1);
  return Array.from({ length: count }, (_, number) => {
    if (held === null) return false;
    const part = digitsOf(number, sizes);
    return levels.every((level, k) => !((held[0] >> level) & 1) || part[k] === digits[level]);
  });
}

/** In words: what devices hold in a state, by kinds that hold the same. */
export function told(state: Held[], one: Communication): string {
  const size = product(one.radices, -1);
  const kinds = new Map<string, number>();
  for (const held of state) {
    const { share, contributors } = amounts(held, one.radices);
    const what = share === 1 ? "the whole payload" : `1/${Math.round(1 / share)} of the payload`;
    const text = share === 0 ? "nothing" : `${what}, with the contributions of ${contributors} of ${size}`;
    kinds.set(text, (kinds.get(text) ?? 0) + 1);
  }
  const texts = [...kinds.keys()];
  return texts.length === 1 ? `Every device holds ${texts[0]}.` : `Devices hold ${texts.join("; or ")}.`;
}
