/** The address of chart.js on a Jupyter server, or null if no such server made this page. */
export function chartUrl(): string | null {
  const config = JSON.parse(document.getElementById("jupyter-config-data")?.textContent || "{}");
  const base = config.baseUrl ?? document.body.dataset.baseUrl;
  const folder = config.fullLabextensionsUrl ?? (base === undefined ? null : `${base}lab/extensions`);
  if (folder === null) return null;
  // `import(url)` in a host's page needs the full address; Jupyter writes its own into the page.
  return new URL(`${folder}/hfmem-widget/static/chart.js?v=${CHART_HASH}`, location.href).href;
}
