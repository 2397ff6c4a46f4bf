import { describe, expect, it } from "vitest";
import { address, askedIn, asking, lookIn } from "./asked";

const asked = asking({
  system: "node=4@8GB/s,gpu=16@270GB/s",
  axes: "data=4,shard=16",
  reductions: "data=2GiB\nshard=64MiB*80",
  workload: "",
  library: "nccl",
  constraints: "inside shard=node",
  chunks: "4",
  placement_only: "yes",
});

describe("the address of a view", () => {
  it("says all that is asked, and what is looked at", () => {
    const text = address(asked, { plan: 2, beside: 0, axis: "shard", communication: 1, step: null });
    expect(askedIn(text)).toEqual(asked);
    expect(text).toContain("chunks=4&placement_only=yes&show-plan=2");
    expect(lookIn(text)).toEqual({ plan: 2, beside: 0, axis: "shard", communication: 1 });
  });

  it("may be empty, or say nonsense", () => {
    expect(askedIn("")).toBeNull();
    expect(lookIn("?show-plan=-1&show-step=NaN&show-beside=99999999")).toEqual({});
    expect(askedIn("?system=x")!.library).toBe("");
  });
});
