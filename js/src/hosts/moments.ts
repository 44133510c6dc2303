/** moments.js: the script that the picture of `--stacks` carries, so that it answers clicks without a kernel. */

import { drawAllMoments } from "../core/moments.ts";

void drawAllMoments(document);
