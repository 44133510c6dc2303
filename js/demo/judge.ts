/** What is judged of a scripted run: the trend of what its steps leave behind, and the budget that it goes over. */

import { formatBytes } from "../src/core/format.ts";
import type { Finding, Guide } from "../src/core/judged.ts";
import { type Plan, peakOf } from "./plan.ts";

export interface Judged {
  findings: Finding[];
  guides: Guide[];
}

const GIB = 2 ** 30;
const HELD = 3.75;
/** A trend is told from so many steps on. */
const LEAST_STEPS = 12;

export function judge(plan: Plan, load: number, keys: string[], time: number): Judged {
  const { leak = 0, budget, stepSeconds, steps, scale = 1 } = plan;
  const done = Math.min(steps, Math.floor((time - load) / stepSeconds));
  const findings: Finding[] = [];
  const guides: Guide[] = [];
  const device = keys[0]!;
  if (budget !== undefined) {
    const bytes = budget * scale * GIB;
    const label = `budget ${formatBytes(bytes)}`;
    for (const key of keys) {
      guides.push({
        device: key,
        kind: "budget",
        label,
        start: 0,
        stop: null,
        first: bytes,
        last: bytes,
        band: [0, 0],
      });
    }
    const step = Array.from({ length: steps }, (_, at) => at).find(
      (at) => peakOf(plan, at) + at * leak > budget,
    );
    const at = step === undefined ? Number.POSITIVE_INFINITY : load + (step + 0.45) * stepSeconds;
    if (step !== undefined && time > at) {
      const title = `Allocated memory went over the ${label} at ${at.toFixed(1)} s, in step ${step + 1}.`;
      findings.push({ kind: "budget", severity: "warn", title, span: 1, device, time: at });
    }
  }
  if (leak > 0 && done >= LEAST_STEPS) {
    const at = (step: number) => (HELD + step * leak) * scale * GIB;
    const label = `+${formatBytes(leak * scale * GIB)} a step`;
    const [start, stop] = [load + 2 * stepSeconds, load + done * stepSeconds];
    const band: [number, number] = [0.03 * scale * GIB, 0.09 * scale * GIB];
    guides.push({ device, kind: "trend", label, start, stop, first: at(2), last: at(done), band });
  }
  return { findings, guides };
}
