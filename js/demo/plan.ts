/** What a scripted run is to be like, and what follows from that for each of its steps. */

export interface Plan {
  label: string;
  devices: number;
  steps: number;
  stepSeconds: number;
  scale?: number;
  total?: number;
  epochs?: number;
  gap?: readonly [number, number];
  interval?: number;
  /** False where nobody knows what the tensors are. */
  parts?: boolean;
  /** The process' own memory in the place of a GPU. */
  host?: boolean;
  /** What every step leaves behind, and how much the run may take, in GiB where nothing is scaled. */
  leak?: number;
  budget?: number;
}

/** The longest sequence of a step; one batch is longer than all others. */
export function longestOf({ steps }: Plan, step: number): number {
  return step === Math.floor(0.3 * steps) ? 144 : 32 + Math.floor(96 * noise(step));
}

/** In GiB, where nothing is scaled: the more tokens, the more activations. */
export function peakOf(plan: Plan, step: number): number {
  return 4.1 + 0.02 * longestOf(plan, step) + (step % 7 === 0 ? 0 : 0.1 * noise(step + 0.5));
}

/** Repeatable: the same run looks the same every time. */
export function noise(seed: number): number {
  const x = Math.sin(seed * 127.1 + 11.7) * 43758.5453;
  return x - Math.floor(x);
}
