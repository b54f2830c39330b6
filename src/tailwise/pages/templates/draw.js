"use strict";
// Plotly lies packed in the page: it is unpacked, started (the policy of the page names its hash) and given the figures.
const places = [...document.querySelectorAll(".plotly-graph-div")];

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function draw() {
  const script = document.createElement("script");
  script.text = await unpack(document.getElementById("plotly").textContent);
  document.body.append(script);
  for (const place of places) {
    const figure = JSON.parse(place.nextElementSibling.textContent);
    Plotly.newPlot(place, figure.data, figure.layout, {displayModeBar: false, responsive: true});
  }
  document.documentElement.dataset.drawn = places.length;
}

if (typeof DecompressionStream === "undefined") {
  for (const place of places) place.textContent = "This picture needs a browser from 2023 or later.";
} else {
  draw();
}
