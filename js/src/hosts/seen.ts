/**
 * JupyterLab's panel has no way of its own to the kernel. That a person looks at a run there, it tells the page, by this
 * event with the run as its detail; the run's own widget tells the kernel.
 */
export const SEEN = "hfmem-seen";
