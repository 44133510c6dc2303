/** What Python wrote (`tests/contract/frames`), as a browser would be handed it. */

import anatomy from "../../tests/contract/frames/anatomy.json";
import eightGpus from "../../tests/contract/frames/eight-gpus.json";
import failed from "../../tests/contract/frames/failed.json";
import gapAndSpans from "../../tests/contract/frames/gap-and-spans.json";
import gpuAppears from "../../tests/contract/frames/gpu-appears.json";
import judged from "../../tests/contract/frames/judged.json";
import oneGpu from "../../tests/contract/frames/one-gpu.json";
import ranks from "../../tests/contract/frames/ranks.json";
import training from "../../tests/contract/frames/training.json";
import { decode, decodeHistory } from "../src/core/protocol.ts";

export interface Recording {
  messages: { content: object; buffers: string[] }[];
  history: { after: number; state: object; buffers: Record<string, string> };
}

export const RECORDINGS = {
  "one-gpu": oneGpu,
  "eight-gpus": eightGpus,
  "gap-and-spans": gapAndSpans,
  failed,
  "gpu-appears": gpuAppears,
  training,
  anatomy,
  judged,
  ranks,
} satisfies Record<string, Recording>;

/** As a browser hands it over: a view that starts at some byte of the frame. */
function bytes(base64: string): DataView {
  const text = `-----${atob(base64)}`;
  return new DataView(Uint8Array.from(text, (letter) => letter.charCodeAt(0)).buffer, 5);
}

export function decoded(recording: Recording) {
  return recording.messages.map(({ content, buffers }) => decode(content, buffers.map(bytes)));
}

export function history({ history: { state, buffers } }: Recording) {
  const inPlace = Object.entries(buffers).map(([name, base64]) => [name, bytes(base64)]);
  return decodeHistory({ ...state, ...Object.fromEntries(inPlace) });
}
