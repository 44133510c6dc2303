/**
 * JupyterLab's panel has no connection to the kernel. When a person looks at a run there, the panel tells the page by
 * this event, with the run as its detail, and the run's own widget tells the kernel.
 */
export const SEEN = "hfmem-seen";
