import type { Metafile } from "esbuild";

export interface Licensed {
  name: string;
  versionInfo: string;
  licenseId: string;
  extractedText: string;
}

export function licensesOf(metafiles: Metafile[], root?: string): Promise<Licensed[]>;
export function asText(packages: Licensed[]): string;
