/** moments.js: what the picture of `--stacks` carries with it, so that it answers clicks without a kernel. */

import { drawAllMoments } from "../core/moments.ts";

void drawAllMoments(document);
