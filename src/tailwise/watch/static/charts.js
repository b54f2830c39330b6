"use strict";
// Charts: from curves to Plotly pictures in the colours of the page.
const Charts = (function () {
  const COLOURS = {
    light: ["#1f6fb2", "#c2452d", "#3c8d5a", "#8757a8", "#b8862b", "#2f8f9d", "#b0578d", "#6b7884"],
    dark: ["#62a8e5", "#f0866f", "#70c391", "#b995dc", "#deb45a", "#62c0cd", "#de8fbd", "#93a0ac"],
  };
  const DASHES = ["solid", "dot", "dash", "dashdot", "longdash"];
  const css = function (name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); };
  const dark = function () { return getComputedStyle(document.documentElement).colorScheme === "dark"; };
  const colour = function (index) { const list = COLOURS[dark() ? "dark" : "light"]; return list[index % list.length]; };
  // Plotly reads tags and entities in its texts; a name is plain text.
  const plain = function (text) { return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;"); };
  const config = { displayModeBar: false, responsive: true, scrollZoom: false };

  function layout(extra) {
    const axis = { gridcolor: css("--grid"), zerolinecolor: css("--line"), linecolor: css("--line"), tickfont: { size: 11, color: css("--quiet") }, fixedrange: true, automargin: true };
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 44, r: 8, t: 6, b: 26 }, showlegend: false,
      font: { family: "system-ui, sans-serif", size: 11, color: css("--quiet") }, hovermode: "x unified", dragmode: false,
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } },
      xaxis: Object.assign({}, axis, { nticks: 5 }), yaxis: Object.assign({}, axis, { nticks: 5 }),
    };
    for (const key of Object.keys(extra)) {
      base[key] = key === "xaxis" || key === "yaxis" ? Object.assign(base[key], extra[key]) : extra[key];
    }
    return base;
  }

  // The range of the values, widened to a bound of the healthy band only when that bound is near: a band is context,
  // not a reason to squeeze the curve into one pixel.
  function rangeOf(values, band, log) {
    const usable = values.filter(function (v) { return v !== null && (!log || v > 0); });
    if (!usable.length) { return null; }
    let low = usable[0], high = usable[0];
    for (const v of usable) { if (v < low) { low = v; } if (v > high) { high = v; } }
    if (log) {
      low = Math.log10(low); high = Math.log10(high);
      const pad = Math.max(0.1, 0.08 * (high - low));
      return [low - pad, high + pad];
    }
    const span = high - low || Math.max(Math.abs(high) * 0.2, 1e-9);
    if (band) {
      if (band[0] !== null && band[0] < low && low - band[0] < 0.6 * span) { low = band[0]; }
      if (band[1] !== null && band[1] > high && band[1] - high < 0.6 * span) { high = band[1]; }
    }
    const pad = 0.07 * (high - low || span);
    return [low - pad, high + pad];
  }

  function bandShape(band, range, log) {
    if (!band || !range) { return []; }
    const place = function (v) { return log ? (v > 0 ? Math.log10(v) : -Infinity) : v; };
    const bottom = Math.max(range[0], band[0] === null ? -Infinity : place(band[0]));
    const top = Math.min(range[1], band[1] === null ? Infinity : place(band[1]));
    if (!(top > bottom)) { return []; }
    const y = log ? [Math.pow(10, bottom), Math.pow(10, top)] : [bottom, top];
    return [{ type: "rect", layer: "below", xref: "paper", x0: 0, x1: 1, yref: "y", y0: y[0], y1: y[1], fillcolor: css("--band"), line: { width: 0 } }];
  }

  // series: [{name, x, y, colour, dash, markers}]
  function curves(element, series, band, log) {
    const shown = series.filter(function (s) { return s.y.some(function (v) { return v !== null; }); });
    const all = [].concat.apply([], shown.map(function (s) { return s.y; }));
    const range = rangeOf(all, band, log);
    const traces = shown.map(function (s) {
      const sparse = s.y.filter(function (v) { return v !== null; }).length <= 40;
      return {
        type: "scatter", mode: s.markers && sparse ? "lines+markers" : s.x.length === 1 ? "markers" : "lines", name: plain(s.name), x: s.x, y: s.y, connectgaps: true,
        line: { color: s.colour, width: s.dash === "dash" ? 1.3 : 1.6, dash: s.dash || "solid" }, marker: { size: 5, color: s.colour },
        hovertemplate: "%{y:.4g}",
      };
    });
    if (band) {
      const x = [], y = [];
      for (const s of shown.filter(function (s) { return s.banded; })) {
        s.y.forEach(function (v, i) {
          if (v !== null && ((band[0] !== null && v < band[0]) || (band[1] !== null && v > band[1]))) { x.push(s.x[i]); y.push(v); }
        });
      }
      if (x.length) { traces.push({ type: "scatter", mode: "markers", x: x, y: y, marker: { size: 4, color: css("--care") }, hoverinfo: "skip" }); }
    }
    Plotly.react(element, traces, layout({
      shapes: bandShape(band, range, log), xaxis: { tickformat: "~s", hoverformat: ",d" },
      yaxis: Object.assign({ type: log ? "log" : "linear" }, range ? { range: range } : {}, log ? { dtick: 1 > (range ? range[1] - range[0] : 2) ? "D2" : 1, tickformat: "~g" } : {}),
    }), config);
    return shown.length;
  }

  function times(element, series, options) {
    const traces = series.map(function (s) {
      return { type: "scatter", mode: "lines", name: plain(s.name), x: s.x, y: s.y, opacity: s.main ? 1 : 0.6, line: { color: s.colour, width: s.main ? 1.9 : 1, shape: options.step ? "hv" : "linear" }, fill: options.fill && s.main ? "tozeroy" : "none", fillcolor: s.colour + "22", hovertemplate: options.hover };
    });
    Plotly.react(element, traces, layout({ xaxis: { type: "date" }, yaxis: { tickformat: options.format } }), config);
  }

  function bars(element, labels, values, expected, colourOf) {
    Plotly.react(element, [{ type: "bar", x: labels, y: values, marker: { color: colourOf, opacity: 0.75 }, hovertemplate: "%{y:.1%}<extra></extra>" }], layout({
      hovermode: "closest", bargap: 0.12, xaxis: { range: [0, 100], tickvals: [0, 20, 40, 60, 80, 100], ticksuffix: "%" }, yaxis: { tickformat: ".0%", rangemode: "tozero" },
      shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: expected, y1: expected, line: { color: css("--ink"), width: 1.2, dash: "dash" } }],
    }), config);
  }

  // One horizontal line of the return: the limit, the tail that is predicted, the tail that came, the mean.
  function ladder(element, marks) {
    const values = marks.map(function (m) { return m.value; });
    const low = Math.min.apply(null, values), high = Math.max.apply(null, values), pad = 0.15 * (high - low || Math.abs(high) || 1);
    const limit = marks.find(function (m) { return m.limit; });
    const shapes = limit ? [{ type: "rect", layer: "below", yref: "paper", y0: 0, y1: 1, x0: low - pad, x1: limit.value, fillcolor: css("--bad-soft"), line: { width: 0 } },
      { type: "line", yref: "paper", y0: 0, y1: 1, x0: limit.value, x1: limit.value, line: { color: css("--bad"), width: 1.6 } }] : [];
    const rows = marks.filter(function (m) { return !m.limit; });
    Plotly.react(element, [{ type: "scatter", mode: "markers+text", x: rows.map(function (m) { return m.value; }), y: rows.map(function (m) { return m.label; }), text: rows.map(function (m) { return m.text; }), textposition: "top center", textfont: { size: 11, color: css("--ink") }, cliponaxis: false, marker: { size: 9, color: rows.map(function (m) { return m.colour; }) }, hovertemplate: "%{x:.4g}<extra></extra>" }],
      layout({ hovermode: "closest", shapes: shapes, margin: { l: 10, r: 14, t: 14, b: 26 }, xaxis: { range: [low - pad, high + pad], tickformat: "~g" }, yaxis: { autorange: "reversed", automargin: true, showgrid: true } }), config);
  }

  // The law of a return as its distribution function: how probable it is to stay below x.
  function law(element, forecast) {
    const shapes = [], notes = [];
    const mark = function (x, words, colour, dash, top) {
      if (x === null) { return; }
      shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, line: { color: colour, width: 1.3, dash: dash } });
      const left = words === "CVaR" && forecast.limit !== null && x < forecast.limit;  // its word would cross the limit
      notes.push({ x: x, y: top, yref: "paper", xanchor: left ? "right" : "left", xshift: left ? -3 : 3, showarrow: false, text: words, font: { size: 11, color: colour }, bgcolor: css("--card"), borderpad: 1 });
    };
    mark(forecast.limit, "limit", css("--bad"), "dash", 0.98);
    mark(forecast.cvar, "CVaR", css("--care"), "solid", 0.86);
    mark(forecast.mean, "mean", css("--good"), "solid", 0.2);
    Plotly.react(element, [{ type: "scatter", mode: "lines", x: forecast.quantiles, y: forecast.levels, line: { color: colour(0), width: 1.8 }, fill: "tozeroy", fillcolor: colour(0) + "18", hovertemplate: "%{y:.0%} below %{x:.4g}<extra></extra>" }],
      layout({ hovermode: "closest", shapes: shapes, annotations: notes, xaxis: { tickformat: ".1%" }, yaxis: { range: [0, 1], tickvals: [0, 0.25, 0.5, 0.75, 1], tickformat: ".0%" } }), config);
  }

  return { law: law, colour: colour, css: css, curves: curves, times: times, bars: bars, ladder: ladder, DASHES: DASHES };
})();
