declare module "*.css" {
  const text: string;
  export default text;
}

declare module "plotly.js-basic-dist-min" {
  const plotly: object;
  export default plotly;
}

/** The first digits of the SHA-256 of chart.js, inserted by build.mjs. */
declare const CHART_HASH: string;
