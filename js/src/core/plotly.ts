/** The only module that knows Plotly. Of Plotly's many types it declares only those that the chart uses. */

import bundle from "plotly.js-basic-dist-min";

export interface Figure {
  data: object[];
  layout: object;
}

export interface GraphDiv extends HTMLElement {
  on?(event: string, handler: (detail: Record<string, unknown>) => void): void;
}

interface Api {
  react(node: GraphDiv, data: object[], layout: object, config: object): Promise<unknown>;
  purge(node: GraphDiv): void;
}

const plotly = bundle as unknown as Api;

const CONFIG = {
  displayModeBar: false,
  doubleClick: false,
  showTips: false,
  scrollZoom: false,
  staticPlot: false,
};

export function draw(node: GraphDiv, figure: Figure): Promise<unknown> {
  return plotly.react(node, figure.data, figure.layout, CONFIG);
}

export function purge(node: GraphDiv): void {
  plotly.purge(node);
}
