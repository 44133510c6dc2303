/** what_if.js: the script that a card carries, so that it answers without a kernel. */

import { drawAllWhatIfs } from "../core/whatif.ts";

drawAllWhatIfs(document);
