import { describe, expect, it } from "vitest";
import fixture from "../fixture.json";
import { draw } from "./boxes";
import { bytes, faster, seconds, times } from "./format";
import { amounts, cuts, heldBy, segments, told } from "./hold";
import { colour, heatColour, luminance } from "./palette";
import { coordinates, devices, digitsOf, numberOf, spread, together } from "./place";
import { bars, heat, powers, ticks } from "./timeline";
import type { View } from "./types";

// Written by `python -m tests.show`, with what Python says of each device: tests/show/test_assets.py checks that.
interface Known {
  view: View;
  coordinates: Record<string, number>[];
  groups: number[][];
  ends: number[];
}

const known = fixture as unknown as Known;
const view = known.view;
const plan = view.plans[view.chosen]!;
const counts = view.system.levels.map((level) => level.count);

describe("places", () => {
  it("have the coordinates that Python gives them", () => {
    known.coordinates.forEach((expected, device) => {
      const found = coordinates(plan, counts, device);
      expect(Object.fromEntries(plan.axes.map((axis, k) => [axis, found[k]]))).toEqual(expected);
    });
  });

  it("form the groups that Python forms", () => {
    const all = devices(view, plan);
    const axes = plan.communications[0]!.axes;
    for (const group of known.groups) {
      const mine = all.filter((each) => together(plan, axes, all[group[0]!]!, each)).map((each) => each.number);
      expect(mine).toEqual(group);
    }
  });

  it("are numbered in mixed radix", () => {
    expect(digitsOf(37, [4, 16])).toEqual([2, 5]);
    expect(numberOf([2, 5], [4, 16])).toBe(37);
  });

  it("are told in words", () => {
    const last = counts.map((_, k) => (k === counts.length - 1 ? 2 : 1));
    expect(spread(view, last)).toMatch(/^2 gpus inside one /);
    expect(spread(view, counts.map(() => 1))).toBe("a single device");
  });
});

describe("timelines", () => {
  it("end when the communications are predicted to", () => {
    plan.communications.forEach((one, k) => {
      const end = Math.max(...bars(one).map((bar) => bar.end));
      expect(end / known.ends[k]!).toBeCloseTo(1, 4);
    });
  });

  it("have no overlapping bars in a lane", () => {
    for (const one of plan.communications) {
      const ends = new Map<string, number>();
      for (const bar of bars(one)) {
        const key = `${bar.level} ${bar.lane}`;
        expect(bar.start).toBeGreaterThanOrEqual((ends.get(key) ?? 0) - one.seconds * 1e-6);
        ends.set(key, bar.end);
      }
    }
  });

  it("tell how busy links are, between none and all of the time", () => {
    for (const one of plan.communications)
      for (const step of [null, 0])
        for (const share of heat(one, counts.length, 0, step)) {
          expect(share).toBeGreaterThanOrEqual(0);
          expect(share).toBeLessThanOrEqual(1);
        }
  });

  it("have round ticks", () => {
    expect(ticks(2.3, 4)).toEqual([0, 1, 2]);
    expect(ticks(0, 4)).toEqual([0]);
    expect(powers(0.02, 3)).toEqual([0.1, 1]);
  });
});

describe("what devices hold", () => {
  const one = { ...plan.communications[0]!, radices: [2, 4] };

  it("is scattered and reduced by levels", () => {
    expect(amounts([0b10, 0b11], [2, 4])).toEqual({ share: 1 / 4, contributors: 8 });
    expect(amounts(null, [2, 4])).toEqual({ share: 0, contributors: 0 });
    expect(cuts([[[0, 0]], [[0b10, 0b10]]])).toBe(0b10);
    expect(segments([0b10, 0b10], [1, 2], [2, 4], 0b10)).toEqual([false, false, true, false]);
    expect(segments([0b10, 0b10], [1, 1], [2, 2], 0b11)).toEqual([false, false, true, true]);
    expect(segments([0, 0], [1, 2], [2, 4], 0b10)).toEqual([true, true, true, true]);
  });

  it("depends on which digits are zero", () => {
    expect(heldBy([null, null, [0, 2], [0, 2]], [1, 0])).toEqual([0, 2]);
    expect(heldBy([null, null, [0, 2], [0, 2]], [0, 1])).toBeNull();
  });

  it("is told in words", () => {
    expect(told([[0b10, 0b10]], one)).toBe("Every device holds 1/4 of the payload, with the contributions of 4 of 8.");
    expect(told([null, [0, 3]], one)).toContain("nothing; or the whole payload");
  });
});

describe("drawings", () => {
  it("fit the width, with every device in its box", () => {
    for (const [levels, width] of [
      [[4, 16], 700],
      [[128, 8], 340],
      [[2, 4, 16, 8], 340],
      [[1024], 500],
    ] as [number[], number][]) {
      const drawing = draw(levels, width);
      expect(drawing.width).toBeLessThanOrEqual(width + 1);
      expect(drawing.devices.length).toBe(levels.reduce((product, count) => product * count, 1));
      const boxes = new Map(drawing.boxes.map((box) => [box.digits.join(), box]));
      const outside = drawing.devices.filter((device) => {
        const parent = boxes.get(device.digits.slice(0, -1).join());
        return parent && (device.x < parent.x || device.y + device.height > parent.y + parent.height);
      });
      expect(outside).toEqual([]);
    }
  });
});

describe("figures", () => {
  it("have three digits and a unit", () => {
    expect([seconds(0), seconds(3.532), seconds(0.01721), seconds(4.1e-5), seconds(120)]).toEqual([
      "0 s",
      "3.53 s",
      "17.2 ms",
      "41 µs",
      "120 s",
    ]);
    expect([bytes(512), bytes(2 ** 31), bytes(1.5 * 2 ** 20)]).toEqual(["512 B", "2 GiB", "1.5 MiB"]);
    expect([times(1.624), times(174.3)]).toEqual(["1.62×", "174×"]);
    expect(faster(2, 1, "x")).toBe("2.00× faster than x");
    expect(faster(1, 2, "x")).toBe("2.00× slower than x");
    expect(faster(1, 1, "x")).toBe("as fast as x");
  });

  it("have colours that differ, with text that can be read on them", () => {
    for (const count of [2, 8, 16, 128]) {
      const fills = Array.from({ length: count }, (_, k) => colour(k, count).fill);
      expect(new Set(fills).size).toBe(count);
    }
    const all = Array.from({ length: 101 }, (_, k) => [heatColour(k / 100), colour(k, 101), colour(k % 8, 8)]).flat();
    for (const { fill, text } of all) {
      const [one, other] = [luminance(fill), text === "#000" ? 0 : 1].sort((a, b) => a - b);
      expect((other! + 0.05) / (one! + 0.05)).toBeGreaterThanOrEqual(4.5);
    }
  });
});
