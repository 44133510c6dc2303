/** what_if.js: what a card carries with it, so that it answers without a kernel. */

import { drawAllWhatIfs } from "../core/whatif.ts";

drawAllWhatIfs(document);
