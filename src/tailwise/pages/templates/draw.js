"use strict";
for (const place of document.querySelectorAll(".plotly-graph-div")) {
  const figure = JSON.parse(place.nextElementSibling.textContent);
  Plotly.newPlot(place, figure.data, figure.layout, {displayModeBar: false, responsive: true});
}
