"use strict";
// The page: what is chosen, what has arrived, and how it is shown. It asks the server for nothing but the stream.
(function () {
  const MOST_RUNS = 8, DRAW_EVERY = 900, JUDGED = 20;
  const byId = function (id) { return document.getElementById(id); };
  const state = { runs: [], chosen: [], data: new Map(), panels: [], metrics: {}, skew: 0, source: null, allAlerts: false, touched: false };
  const cards = new Map();
  const dirty = new Set();

  function make(tag, attributes, children) {
    const element = document.createElement(tag);
    for (const key of Object.keys(attributes || {})) {
      if (key === "text") { element.textContent = attributes[key]; }
      else if (attributes[key] !== null && attributes[key] !== undefined) { element.setAttribute(key, attributes[key]); }
    }
    for (const child of children || []) { if (child) { element.append(child); } }
    return element;
  }
  function number(value) {
    if (value === null || value === undefined || !isFinite(value)) { return "–"; }
    const size = Math.abs(value);
    if (size >= 1e5) { return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 }); }
    if (size >= 100) { return value.toLocaleString("en", { maximumFractionDigits: size >= 1000 ? 0 : 1 }); }
    if (size !== 0 && size < 1e-3) { return value.toExponential(1).replace("e", "e").replace("-", "−").replace("e-", "e−"); }
    return String(parseFloat(value.toPrecision(3))).replace("-", "−");
  }
  function percent(value) { return value === null || value === undefined ? "–" : (100 * value).toFixed(1).replace("-", "−") + "%"; }
  function duration(seconds) {
    const s = Math.round(seconds);
    if (s < 60) { return s + " s"; }
    if (s < 3600) { return Math.floor(s / 60) + " min"; }
    if (s < 172800) { return Math.floor(s / 3600) + " h " + String(Math.floor(s % 3600 / 60)).padStart(2, "0"); }
    return Math.floor(s / 86400) + " days";
  }
  const now = function () { return Date.now() / 1000 + state.skew; };
  const last = function (list) { for (let i = (list || []).length - 1; i >= 0; i--) { if (list[i] !== null) { return list[i]; } } return null; };
  // A single rollout's tail is noise: it is judged as the end of a training judges it, over the newest updates.
  function settled(data, name) {
    const known = ((data && data.curves[name]) || []).filter(function (v) { return v !== null; }).slice(-JUDGED);
    return known.length ? known.reduce(function (sum, v) { return sum + v; }, 0) / known.length : null;
  }
  const colourOf = function (run) { return Charts.colour(Math.max(0, state.chosen.indexOf(run))); };
  const chosenData = function () { return state.chosen.map(function (id) { return state.data.get(id); }).filter(Boolean); };
  const runOf = function (id) { return state.runs.find(function (run) { return run.id === id; }); };

  // ------------------------------------------------------------ choosing runs
  function choose(ids) {
    state.chosen = ids.slice(0, MOST_RUNS);
    for (const id of Array.from(state.data.keys())) { if (!state.chosen.includes(id)) { state.data.delete(id); } }
    history.replaceState(null, "", "#" + state.chosen.join(","));
    connect();
    showRuns();
    showAll();
  }
  function firstChoice() {
    const known = location.hash.slice(1).split(",").filter(runOf);
    if (known.length) { return known; }
    const rank = { running: 0, stalled: 1 };
    const sorted = state.runs.slice().sort(function (a, b) {
      return (rank[a.status] ?? 2) - (rank[b.status] ?? 2) || (b.changed || 0) - (a.changed || 0);
    });
    return sorted.length ? [sorted[0].id] : [];
  }
  function showRuns() {
    const wanted = byId("filter").value.trim().toLowerCase();
    byId("filter").hidden = state.runs.length < 9;
    byId("hint").hidden = state.runs.length < 2;
    byId("empty").hidden = state.runs.length > 0;
    const rows = state.runs.filter(function (run) { return !wanted || run.name.toLowerCase().includes(wanted); }).map(function (run) {
      const chosen = state.chosen.includes(run.id);
      const box = make("input", { type: "checkbox", "aria-label": "Overlay " + run.name });
      box.checked = chosen;
      box.addEventListener("change", function () {
        choose(box.checked ? state.chosen.concat(run.id) : state.chosen.filter(function (id) { return id !== run.id; }));
      });
      const share = run.total_steps ? Math.min(1, run.steps / run.total_steps) : 0;
      const fill = make("i");
      fill.style.width = (100 * share).toFixed(1) + "%";
      const errors = run.alerts.error || 0, warnings = run.alerts.warn || 0;
      const counted = errors ? errors + (errors > 1 ? " errors" : " error") : warnings ? warnings + (warnings > 1 ? " warnings" : " warning") : "";
      const button = make("button", { type: "button", title: run.reason ? run.name + ": " + run.reason : run.name }, [
        make("span", { class: "name" }, [make("b", { text: run.name }), make("span", { class: "state " + run.status, text: run.status })]),
        make("div", { class: "bar" }, [fill]),
        make("span", { class: "sub" }, [make("span", { text: [run.world, run.core === "none" ? "" : run.core, run.seed !== null ? "seed " + run.seed : ""].filter(Boolean).join(" · ") }),
          counted ? make("span", { class: errors ? "count error" : "count", text: counted }) : make("span", { text: run.status === "running" ? number(run.steps_per_second) + " steps/s" : run.changed ? duration(Math.max(0, now() - run.changed)) + " ago" : "" })]),
      ]);
      button.addEventListener("click", function () { choose([run.id]); });
      const item = make("li", { class: chosen ? "chosen" : "", "data-run": run.id }, [box, button]);
      if (chosen) { item.style.setProperty("--run", colourOf(run.id)); }
      return item;
    });
    byId("runs").replaceChildren.apply(byId("runs"), rows);
  }

  // ------------------------------------------------------------ the stream
  function connect() {
    if (state.source) { state.source.close(); }
    const source = new EventSource("/events?runs=" + state.chosen.join(","));
    state.source = source;
    source.addEventListener("hello", function (event) {
      const told = JSON.parse(event.data);
      state.panels = told.panels; state.metrics = told.metrics; state.skew = told.now - Date.now() / 1000;
      for (const data of state.data.values()) { data.fresh = true; }
      say("live", "live");
    });
    source.addEventListener("runs", function (event) {
      state.runs = JSON.parse(event.data);
      document.documentElement.dataset.runs = state.runs.length;
      if (!state.touched && state.runs.length && !state.chosen.length) { state.touched = true; choose(firstChoice()); return; }
      showRuns();
      showHead();
    });
    source.addEventListener("news", function (event) { take(JSON.parse(event.data)); });
    source.onerror = function () {
      say("lost", "connection lost, trying again");
      if (source.readyState === EventSource.CLOSED) { setTimeout(function () { if (state.source === source) { connect(); } }, 5000); }
    };
  }
  function say(kind, words) {
    byId("connection").className = "connection " + kind;
    byId("connection").textContent = words;
  }
  function take(news) {
    let data = state.data.get(news.run);
    if (!data || news.reset || data.fresh) {
      data = { run: news.run, update: [], steps: [], curves: {}, alerts: [], evaluation: data && !news.reset ? data.evaluation : null, paper: data && !news.reset ? data.paper : null, latest: new Map() };
      state.data.set(news.run, data);
    }
    const before = data.steps.length;
    data.update.push.apply(data.update, news.update);
    data.steps.push.apply(data.steps, news.steps);
    for (const name of Object.keys(news.curves)) {
      const curve = data.curves[name] || (data.curves[name] = new Array(before).fill(null));
      curve.push.apply(curve, news.curves[name]);
    }
    for (const curve of Object.values(data.curves)) { while (curve.length < data.steps.length) { curve.push(null); } }
    data.alerts = data.alerts.concat(news.alerts).slice(-300);
    data.latest = new Map(news.latest.map(function (row) { return [row.name, row]; }));
    data.rows = news.latest;
    data.bad = news.bad_lines;
    if (news.evaluation) { data.evaluation = news.evaluation; }
    if (news.paper) { data.paper = news.paper; }
    showAll();
    document.documentElement.dataset.points = String(chosenData().reduce(function (sum, d) { return sum + d.steps.length; }, 0));
    document.documentElement.dataset.update = String(data.update.length ? data.update[data.update.length - 1] : 0);
  }

  // ------------------------------------------------------------ showing
  let planned = false, drawn = 0;
  function showAll() {
    if (planned) { return; }
    planned = true;
    const wait = Math.max(0, DRAW_EVERY - (performance.now() - drawn));
    setTimeout(function () {
      planned = false; drawn = performance.now();
      showHead(); showAlerts(); showPaper(); showCharts(); showLaw(); showEvaluation(); showNumbers();
    }, wait);
  }
  function showHead() {
    const id = state.chosen[0], run = runOf(id), data = state.data.get(id);
    const value = function (name) { const row = data && data.latest.get(name); return row ? row.value : null; };
    const lying = function (name) { const row = data && data.latest.get(name); return row && row.healthy === false ? "care" : ""; };
    const tiles = [];
    const tile = function (label, text, small, kind) {
      const bold = make("b", { text: text });
      if (small) { bold.append(" ", make("small", { text: small })); }
      tiles.push(make("div", { class: kind || "" }, [make("span", { text: label }), bold]));
    };
    if (run) {
      const share = run.total_steps ? percent(Math.min(1, run.steps / run.total_steps)) : number(run.steps);
      const speed = run.steps_per_second;
      const left = run.status === "running" && speed && run.total_steps > run.steps ? duration((run.total_steps - run.steps) / speed) + " left" : run.status;
      tile("done, update " + run.update.toLocaleString("en"), share, left, run.status === "stalled" ? "bad" : "");
      tile("return", number(value("episode/return")));
      const limit = value("risk/limit"), measure = settled(data, "risk/measure");
      if (limit !== null && measure !== null) { tile("tail, last " + JUDGED + " / limit", number(measure), "/ " + number(limit), measure < limit ? "bad" : "good"); }
      else if (value("risk/cvar_return") !== null) { tile("CVaR " + (run.alpha ? percent(run.alpha) : ""), number(value("risk/cvar_return"))); }
      if (value("risk/multiplier") !== null) { tile("multiplier", value("risk/active") === 1 ? number(value("risk/multiplier")) : "warm-up"); }
      tile("explained var.", number(value("critic/explained_variance")));
      tile("KL", number(value("policy/kl")), "nats", lying("policy/kl"));
      tile("entropy", number(value("policy/entropy")), "nats", lying("policy/entropy"));
      tile("speed", number(speed), "steps/s");
      if (data && data.bad) { tile("unreadable", number(data.bad), data.bad > 1 ? "lines" : "line", "bad"); }
    }
    byId("head").hidden = !run;
    byId("head").replaceChildren.apply(byId("head"), tiles);
    document.title = run ? run.name + " · Tailwise" : "Tailwise";
  }
  const signed = function (value) { return value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + number(value); };
  function showPaper() {
    const data = state.data.get(state.chosen[0]), paper = data && data.paper;
    byId("paper").hidden = !paper;
    if (!paper) { return; }
    const day = new Date(paper.time).toISOString().slice(0, paper.bar_seconds < 86400 ? 19 : 10).replace("T", " ");
    byId("paper-words").textContent = paper.ticks.toLocaleString("en") + " bars traded, the newest of " + day + " UTC. No real order is sent." + (paper.open ? "" : " The session has ended and can be continued.");
    const tiles = [];
    const tile = function (label, text, small, kind, id) {
      const bold = make("b", { text: text });
      if (small) { bold.append(" ", make("small", { text: small })); }
      tiles.push(make("div", { class: kind || "", id: id || null }, [make("span", { text: label }), bold]));
    };
    const kind = !paper.open ? "" : paper.state === "running" ? "good" : paper.state === "stopped" ? "bad" : "care";
    tile("state", paper.open ? paper.state : "ended", paper.open ? "" : "was " + paper.state, kind, "paper-state");
    tile("feed, newest bar came", duration(Math.max(0, now() - paper.wall)) + " ago", "", "", "paper-age");
    paper.accounts.forEach(function (account) {
      const several = paper.accounts.length > 1 || account.symbols.length > 1;
      const equity = account.equity.toLocaleString("en", { maximumFractionDigits: 2, minimumFractionDigits: 2 });
      tile("equity" + (several ? ", " + account.symbols.join(" + ") : ""), equity);
      account.symbols.forEach(function (symbol, k) {
        const waits = account.target ? account.target[k] : null, wanted = account.wanted ? account.wanted[k] : null;
        const cut = waits !== wanted && wanted !== null ? ", policy wants " + signed(wanted) : "";
        tile((several ? symbol + ": " : "") + "position, x equity", signed(account.exposure[k]), waits === null ? "no order" : "next " + signed(waits) + cut, cut ? "care" : "");
      });
      const law = account.forecast;
      if (law && law.cvar !== null) { tile("predicted CVaR " + Math.round(1000 * law.alpha) / 10 + "%", percent(law.cvar), law.limit !== null ? "limit " + percent(law.limit) : "", law.limit !== null && law.cvar < law.limit ? "care" : ""); }
      if (account.guards.length) { tile("guards of the market", account.guards.join(", "), "", "care"); }
    });
    byId("paper-head").replaceChildren.apply(byId("paper-head"), tiles);
    byId("paper-reasons").replaceChildren.apply(byId("paper-reasons"), paper.reasons.map(function (text) {
      return make("article", { class: "alert " + (paper.state === "stopped" ? "error" : "warn") }, [make("span", { class: "severity", text: "guard" }), make("p", { text: text }), make("time")]);
    }));
    const curve = function (key, title, lines, options) {
      const made = card("paper-charts", "paper-" + key, title, null);
      made.legend.replaceChildren.apply(made.legend, lines.length > 1 ? lines.map(function (l) { return label(l.name, l.colour, "solid"); }) : []);
      drawLater(made, function () { Charts.times(made.plot, lines, options); });
    };
    const equity = [], targets = [];
    paper.curves.forEach(function (account, k) {
      const names = paper.accounts[k].symbols;
      equity.push({ name: names.join(" + "), x: paper.times, y: account.equity, colour: Charts.colour(k), main: true });
      account.target.forEach(function (values, a) { targets.push({ name: names[a], x: paper.times, y: values, colour: Charts.colour(targets.length), main: true }); });
    });
    curve("equity", "Equity on paper", equity, { format: ",.0f", hover: "%{y:,.2f}" });
    curve("target", "Target, in multiples of equity", targets, { format: ".2f", hover: "%{y:+.3f}", step: true });
    for (const [key, made] of cards) { if (key.startsWith("paper-law-")) { made.element.hidden = true; } }
    paper.accounts.forEach(function (account, k) {
      const law = account.forecast;
      if (!law || !law.quantiles) { return; }
      const made = card("paper-charts", "paper-law-" + k, "Predicted law of the next " + law.horizon + " bars" + (paper.accounts.length > 1 ? ", " + account.symbols.join(" + ") : ""), "discounted log-return, as the policy predicted it at " + new Date(law.time).toISOString());
      made.element.hidden = false;
      drawLater(made, function () { Charts.law(made.plot, law); });
    });
  }
  function gatherAlerts() {
    const found = [];
    for (const data of chosenData()) {
      const rules = new Map();
      for (const alert of data.alerts) {
        const known = rules.get(alert.rule) || { times: 0, actions: [], run: data.run };
        if (alert.event === "raised") { Object.assign(known, alert, { times: known.times + 1, over: null }); }
        else if (alert.event === "acted") { known.actions.push(alert); if (!known.rule) { Object.assign(known, alert); } }
        else if (alert.event === "cleared") { known.over = alert.update; }
        if (known.rule) { rules.set(alert.rule, known); }
      }
      found.push.apply(found, Array.from(rules.values()));
    }
    const rank = { error: 0, warn: 1, info: 2 };
    const key = function (a) { return (a.over ? 10 : 0) + (rank[a.severity] ?? 2); };
    return found.sort(function (a, b) { return key(a) - key(b) || b.update - a.update; });
  }
  function showAlerts() {
    const found = gatherAlerts();
    const shown = state.allAlerts ? found : found.slice(0, 4);
    const several = state.chosen.length > 1;
    const items = shown.map(function (alert) {
      const who = several && runOf(alert.run) ? runOf(alert.run).name + ": " : "";
      const when = "update " + alert.update.toLocaleString("en") + (alert.times > 1 ? ", " + alert.times + " times" : "") + (alert.over ? ", over since " + alert.over.toLocaleString("en") : "");
      const acted = alert.actions.length ? make("p", { text: "Done: " + alert.actions[alert.actions.length - 1].evidence }) : null;
      const said = make("p", {}, [make("strong", { text: who + alert.rule.replace(/_/g, " ") + ". " }), alert.evidence]);
      return make("article", { class: "alert " + (alert.over ? "over" : alert.severity), "data-rule": alert.rule }, [
        make("span", { class: "severity", text: alert.over ? "over" : alert.severity }),
        make("div", {}, [said, alert.advice ? make("p", { class: "advice", text: alert.advice }) : null, acted]),
        make("time", { text: when }),
      ]);
    });
    if (found.length > 4) {
      const more = make("button", { type: "button", class: "more", text: state.allAlerts ? "Show fewer" : "Show " + (found.length - 4) + " more" });
      more.addEventListener("click", function () { state.allAlerts = !state.allAlerts; showAlerts(); });
      items.push(more);
    }
    const before = byId("alerts").dataset.shown, text = JSON.stringify([found, state.allAlerts, several]);
    if (before !== text) { byId("alerts").dataset.shown = text; byId("alerts").replaceChildren.apply(byId("alerts"), items); }
  }

  const seen = new IntersectionObserver(function (entries) {
    for (const entry of entries) {
      entry.target.dataset.visible = entry.isIntersecting ? "yes" : "";
      if (entry.isIntersecting && dirty.has(entry.target)) { dirty.delete(entry.target); cards.get(entry.target.dataset.key).draw(); }
    }
  }, { rootMargin: "200px" });

  function card(parent, key, title, meaning) {
    if (cards.has(key)) { return cards.get(key); }
    const heading = make("h3", { text: title, title: meaning }), value = make("b"), legend = make("div", { class: "legend" }), plot = make("div", { class: "plot" });
    const element = make("article", { class: "card", "data-key": key }, [make("header", {}, [heading, value]), legend, plot]);
    byId(parent).append(element);
    const made = { element: element, heading: heading, value: value, legend: legend, plot: plot, draw: function () {} };
    cards.set(key, made);
    seen.observe(element);
    return made;
  }
  function drawLater(made, draw) {
    made.draw = draw;
    if (made.element.dataset.visible) { draw(); } else { dirty.add(made.element); }
  }
  function label(text, colour, dash) {
    const line = make("i", { class: dash === "dash" || dash === "longdash" ? "dash" : dash === "dot" || dash === "dashdot" ? "dot" : "" });
    line.style.color = colour;
    return make("span", {}, [line, text]);
  }
  const WORDS = {
    "episode/return": "training", "evaluate/return": "evaluation", "risk/cvar_return": "CVaR of this rollout", "risk/measure": "smoothed measure",
    "calibration/cvar_predicted": "predicted", "calibration/cvar_realised": "realised", "risk/limit": "limit",
  };
  function showCharts() {
    const several = state.chosen.length > 1, all = chosenData();
    for (const panel of state.panels) {
      const key = "panel " + panel.title, spec = state.metrics[panel.names[0]] || {};
      const present = panel.names.filter(function (name) { return all.some(function (d) { return d.curves[name]; }); });
      if (!present.length) { if (cards.has(key)) { cards.get(key).element.hidden = true; } continue; }
      const made = card("charts", key, panel.title, spec.meaning);
      made.element.hidden = false;
      const names = several ? present.filter(function (name) { return name === present[0] || name === "risk/limit"; }) : present;
      const band = spec.healthy && panel.names[0] === present[0] ? spec.healthy : null;
      const series = [], legend = [];
      all.forEach(function (data) {
        names.forEach(function (name, k) {
          if (!data.curves[name]) { return; }
          const limit = name === "risk/limit";
          const colour = limit && !several ? Charts.css("--bad") : several ? colourOf(data.run) : Charts.colour([0, 4, 2, 3, 5][k]);
          const dash = limit ? "dash" : "solid";
          const run = runOf(data.run);
          series.push({ name: (several && run ? run.name : WORDS[name] || panel.title) + (several && limit ? ", limit" : ""), x: data.steps, y: data.curves[name], colour: colour, dash: dash, banded: k === 0, markers: name.startsWith("evaluate/") });
          if (!several && names.length > 1) { legend.push(label(WORDS[name] || name, colour, dash)); }
          if (several && k === 0 && run) { legend.push(label(run.name, colour, "solid")); }
        });
      });
      const row = all[0] && all[0].latest.get(present[0]);
      const current = row ? row.value : all[0] ? last(all[0].curves[present[0]]) : null;
      made.value.replaceChildren(number(current), " ", make("small", { text: spec.unit === "1" || !spec.unit ? "" : spec.unit }));
      made.value.className = row && row.healthy === false ? "care" : "";
      if (band && (band[0] !== null || band[1] !== null)) {
        const words = band[0] === null ? "healthy below " + number(band[1]) : band[1] === null ? "healthy above " + number(band[0]) : "healthy " + number(band[0]) + " to " + number(band[1]);
        legend.push(make("span", { class: "healthy" }, [make("i"), words]));
      }
      made.legend.replaceChildren.apply(made.legend, legend);
      drawLater(made, function () { Charts.curves(made.plot, series, band, panel.log); });
    }
  }
  function showLaw() {
    const data = state.data.get(state.chosen[0]);
    const value = function (name) { const row = data && data.latest.get(name); return row && row.value !== null ? row.value : null; };
    const tenths = [];
    for (let k = 0; k < 10; k++) { tenths.push(value("calibration/pit/" + k)); }
    const known = tenths.every(function (v) { return v !== null; });
    const marks = [];
    const mark = function (name, words, colour, limit) {
      if (value(name) !== null) { marks.push({ value: value(name), label: words, text: number(value(name)), colour: colour, limit: limit }); }
    };
    mark("risk/limit", "limit", Charts.css("--bad"), true);
    mark("risk/cvar_return", "CVaR, rollout", Charts.colour(0));
    mark("calibration/cvar_predicted", "CVaR predicted", Charts.colour(2));
    mark("calibration/cvar_realised", "CVaR realised", Charts.colour(3));
    mark("risk/threshold", "VaR, rollout", Charts.colour(5));
    mark("return/mean", "mean return", Charts.colour(7));
    byId("law").hidden = !known && marks.length < 3;
    if (byId("law").hidden) { return; }
    const limit = value("risk/limit"), words = [];
    if (value("calibration/windows") !== null) { words.push("Judged on " + number(value("calibration/windows")) + " complete windows: " + percent(value("calibration/coverage_05")) + " of the realised returns lay below the predicted 5% quantile, " + percent(value("calibration/coverage_50")) + " below the median."); }
    const measure = settled(data, "risk/measure");
    if (limit !== null && measure !== null) { words.push("Over the last " + JUDGED + " updates the measure averaged " + number(measure) + (measure >= limit ? ": the limit " + number(limit) + " is kept." : ": the limit " + number(limit) + " is broken.")); }
    byId("law-words").textContent = words.join(" ");
    const places = card("law-charts", "ladder", "Where the tail lies" + (limit !== null ? "; red: beyond the limit" : ""), "discounted return, in units of the reward");
    places.heading.textContent = "Where the tail lies" + (limit !== null ? " (red: beyond the limit)" : "");
    drawLater(places, function () { Charts.ladder(places.plot, marks); });
    if (known) {
      const made = card("law-charts", "tenths", "Realised returns by tenth of their prediction", "each bar should be 10%");
      made.element.hidden = false;
      drawLater(made, function () { Charts.bars(made.plot, tenths.map(function (v, k) { return 10 * k + 5; }), tenths, 0.1, Charts.colour(0)); });
    } else if (cards.has("tenths")) { cards.get("tenths").element.hidden = true; }
  }
  function showEvaluation() {
    const several = state.chosen.length > 1;
    const found = chosenData().filter(function (d) { return d.evaluation; });
    byId("evaluation").hidden = !found.length;
    if (!found.length) { return; }
    const market = found.filter(function (d) { return d.evaluation.kind === "market"; });
    byId("evaluation-words").textContent = found.map(function (d) {
      const run = runOf(d.run), e = d.evaluation, who = several && run ? run.name + ": " : "";
      if (e.kind === "market") { return who + e.name + ", after all costs"; }
      return who + e.name + ": " + number(e.episodes) + " episodes, mean return " + number(e.mean_return) + " ± " + number(e.standard_error) + ", from " + number(e.min_return) + " to " + number(e.max_return);
    }).join("; ") + ".";
    const lines = [];
    for (const d of market) {
      d.evaluation.paths.forEach(function (path, k) {
        const own = path.policy === "policy";
        if (several && !own) { return; }
        const run = runOf(d.run), symbols = new Set(d.evaluation.paths.map(function (p) { return p.symbol; }));
        lines.push({ path: path, name: (several && run ? run.name : path.policy) + (symbols.size > 1 ? ", " + path.symbol : ""), colour: several ? colourOf(d.run) : Charts.colour(k), main: own });
      });
    }
    const draw = function (key, title, field, options) {
      const made = card("evaluation-charts", key, title, null);
      made.element.hidden = !lines.length;
      made.legend.replaceChildren.apply(made.legend, lines.map(function (l) { return label(l.name, l.colour, "solid"); }));
      drawLater(made, function () { Charts.times(made.plot, lines.map(function (l) { return { name: l.name, x: l.path.time, y: l.path[field], colour: l.colour, main: l.main }; }), options); });
    };
    draw("equity", "Equity, multiple of the start", "wealth", { format: ".2f", hover: "%{y:.3f}" });
    draw("drawdown", "Drawdown", "drawdown", { format: ".0%", hover: "%{y:.1%}", fill: true });
    const rows = [].concat.apply([], market.map(function (d) { return d.evaluation.statistics.map(function (s) { return Object.assign({ run: runOf(d.run) }, s); }); }));
    const head = make("tr", {}, ["path", "total return", "Sharpe", "deepest drawdown", "CVaR over the horizon", "CVaR of a bar"].map(function (text) { return make("th", { text: text }); }));
    const body = rows.filter(function (s) { return !several || s.policy === "policy"; }).map(function (s) {
      const who = (several && s.run ? s.run.name + ", " : "") + s.policy + (s.symbol ? ", " + s.symbol : "");
      return make("tr", {}, [who, percent(s.total_return), number(s.sharpe), percent(s.max_drawdown), percent(s.cvar_return), percent(s.cvar_bar)].map(function (text) { return make("td", { text: text }); }));
    });
    byId("statistics").replaceChildren.apply(byId("statistics"), body.length ? [head].concat(body) : []);
  }
  function showNumbers() {
    const data = state.data.get(state.chosen[0]);
    byId("numbers").hidden = !data || !data.rows || !data.rows.length;
    if (byId("numbers").hidden || !byId("numbers").open) { return; }
    const head = make("tr", {}, [make("th", { text: "metric" }), make("th", { text: "value" }), make("th", { text: "healthy" }), make("th", { class: "words", text: "meaning" })]);
    const body = data.rows.map(function (row) {
      const range = row.band ? (row.band[0] === null ? "≤ " + number(row.band[1]) : row.band[1] === null ? "≥ " + number(row.band[0]) : number(row.band[0]) + " to " + number(row.band[1])) : "";
      return make("tr", {}, [make("td", {}, [make("code", { text: row.name })]), make("td", { class: row.healthy === false ? "care" : "", text: number(row.value) + (row.unit === "1" ? "" : " " + row.unit) }), make("td", { text: range }), make("td", { class: "words", text: row.meaning })]);
    });
    byId("metrics").replaceChildren.apply(byId("metrics"), [head].concat(body));
  }

  byId("filter").addEventListener("input", showRuns);
  byId("numbers").addEventListener("toggle", showNumbers);
  document.addEventListener("tailwise-theme", function () { showRuns(); showAll(); });
  window.addEventListener("hashchange", function () {
    const ids = location.hash.slice(1).split(",").filter(runOf);
    if (ids.length && ids.join() !== state.chosen.join()) { choose(ids); }
  });
  setInterval(showRuns, 30000);
  setInterval(showPaper, 5000);  // the age of the feed goes on without news
  connect();
})();
