"""The chart: a scene of plain shapes, painted as SVG and as Plotly."""
