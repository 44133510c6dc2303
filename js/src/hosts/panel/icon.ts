/** A memory module. JupyterLab's `jp-icon3` gives it the colour of the other icons of its side bars. */
export const ICON = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">
  <path class="jp-icon3" fill="#616161" fill-rule="evenodd" d="M1 4.5A.5.5 0 0 1 1.5 4h13a.5.5 0 0 1 .5.5v6a.5.5 0 0 1-.5.5H14v1.5h-1.5V11h-1.75v1.5h-1.5V11h-2.5v1.5h-1.5V11H3.5v1.5H2V11h-.5a.5.5 0 0 1-.5-.5zM3 6v3h2.25V6zm3.875 0v3h2.25V6zm3.875 0v3H13V6z"/>
</svg>`;
