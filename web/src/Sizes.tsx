import { plural, seconds } from "./format";
import type { Sizes as Tried } from "./types";

/** The sizes of the axes that were tried: the best of them, and why others are not possible. */
export function Sizes({ sizes }: { sizes: Tried }) {
  const computing = sizes.best.some((each) => each.computing !== null);
  return (
    <section aria-labelledby="sizes">
      <h2 id="sizes">Sizes of the axes</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Sizes that were tried">
        <table class="matrix">
          <thead>
            <tr>
              <th scope="col">sizes</th>
              <th scope="col" class="number">
                {computing ? "time" : "communication"}
              </th>
              {computing && (
                <>
                  <th scope="col" class="number">
                    communication
                  </th>
                  <th scope="col" class="number">
                    computing
                  </th>
                </>
              )}
              <th scope="col" class="number">
                memory of a device
              </th>
            </tr>
          </thead>
          <tbody>
            {sizes.best.map((each, k) => (
              <tr class={k === 0 ? "chosen" : ""}>
                <th scope="row">{each.axes}</th>
                <td class="number">{seconds(each.seconds)}</td>
                {computing && (
                  <>
                    <td class="number">{seconds(each.communication)}</td>
                    <td class="number">{seconds(each.computing ?? 0)}</td>
                  </>
                )}
                <td class="number">{each.memory}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="hint">
        {sizes.tried < sizes.ways
          ? `${sizes.tried.toLocaleString("en")} of ${plural(sizes.ways, "choice")} of sizes were tried: others may be faster.`
          : `${plural(sizes.tried, "choice")} of sizes.`}{" "}
        {sizes.refused.length > 0 && `${sizes.refused.join("; ")}. `}
        All below is with the first.
      </p>
    </section>
  );
}
