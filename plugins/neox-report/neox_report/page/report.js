"use strict";
// Draws the content of the page. Text reaches the document as text alone: nothing here makes HTML of a string.
(() => {
  const live = document.body.dataset.live === "yes";
  const main = document.getElementById("report");
  const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f6fd0", "#8c8c8c"];
  const DARK = ["#58a6ff", "#f0883e", "#3fb98f", "#e39bc4", "#d9b544", "#8fd0f5", "#a99cf0", "#b0b0b0"];
  const DASHES = ["solid", "dash", "dot"];
  const FIGURES = [
    ["Training loss", "nats a token", (name) => name === "loss"],
    ["Validation and test loss", "nats a token", (name) => /^(valid|test)_(.*_)?loss$/.test(name)],
    ["Learning rate", "", (name) => name === "lr"],
    ["Gradient norm", "", (name) => name === "grad_norm"],
    ["Tokens per second", "tokens/s", (name) => name === "tokens_per_s"],
    ["MFU", "%", (name) => name === "mfu", 100],
    ["Memory", "GiB", (name) => name === "memory_gib"],
    ["Data wait", "s a step", (name) => name === "data_wait_s"],
    ["Skipped steps", "steps", (name) => name === "skipped_steps"],
    ["World size", "ranks", (name) => name === "world_size"],
  ];
  const PLAIN = { displaylogo: false, responsive: true };
  let content = JSON.parse(document.getElementById("content").textContent);
  let axis = "step";
  let lost = false;
  const plots = new Map();

  function make(tag, attributes, ...inner) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "colour") element.style.setProperty("--run", value);
      else element.setAttribute(name, value);
    }
    element.append(...inner.filter((each) => each !== null && each !== undefined));
    return element;
  }
  const hue = (at) => (matchMedia("(prefers-color-scheme: dark)").matches ? DARK : LIGHT)[at % LIGHT.length];
  const colour = (run) => hue(content.runs.indexOf(run));
  const plotText = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const number = (value) => {
    if (value === null || value === undefined) return "-";
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size >= 1e4 && size < 1e12) return Math.round(value).toLocaleString("en");
    return size !== 0 && (size < 1e-3 || size >= 1e12) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
  };
  const when = (time) => new Date(time * 1000).toLocaleString();
  function ago(seconds) {
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
      if (seconds >= size) return `${(seconds / size).toFixed(0)} ${unit} ago`;
    }
    return `${Math.max(0, seconds).toFixed(0)} s ago`;
  }
  function bytes(count) {
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
    }
    return `${count} bytes`;
  }
  function table(heads, rows, numeric = []) {
    const cell = (tag, value, column) => make(tag, { class: numeric.includes(column) ? "number" : "value" }, value);
    return make("div", { class: "wide" }, make("table", {},
      make("thead", {}, make("tr", {}, ...heads.map((each, column) => cell("th", each, column)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((each, column) => cell("td", each, column)))))));
  }
  function fold(key, title, ...inner) {
    return make("details", { "data-key": key }, make("summary", {}, title), ...inner);
  }
  const named = (run, text) => (content.runs.length > 1 ? make("h3", {}, text ? `${run.name}: ${text}` : run.name) : null);

  // --- curves ---

  function lines(run, fits, scale) {
    return Object.entries(run.series).filter(([name]) => fits(name)).map(([name, series]) => ({ name, series, scale }));
  }
  function caption(run, line, several) {
    const { series, scale } = line;
    const who = [content.runs.length > 1 ? run.name : null, several ? line.name : null].filter(Boolean).join(", ");
    const value = (end) => `${number(end.value * scale)} at step ${number(end.step)}`;
    if (!series.first) return `${who ? `${who}: ` : ""}${number(series.count)} values, none of them finite.`;
    const gaps = series.gaps ? ` ${number(series.gaps)} values were not finite.` : "";
    const ends = series.count === 1 ? value(series.first)
      : `from ${value(series.first)} to ${value(series.last)}; lowest ${value(series.low)}, highest ${value(series.high)}`;
    return `${who ? `${who}: ` : ""}${number(series.count)} value${series.count === 1 ? "" : "s"}, ${ends}.${gaps}`;
  }
  function places(run, series) {
    if (axis === "step") return series.step;
    const begin = firstTime(run);
    return series.time.map((time) => (time - begin) / 3600);
  }
  const firstTime = (run) => Math.min(...run.starts.map((each) => each.time - each.total),
    ...Object.values(run.series).map((each) => each.time[0]));
  function marks() {
    const style = getComputedStyle(document.documentElement);
    const line = (x, hue) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "below",
      line: { color: style.getPropertyValue(hue).trim(), width: 1, dash: "dot" } });
    return content.runs.flatMap((run) => {
      const x = (each) => (axis === "step" ? each.step : (each.time - firstTime(run)) / 3600);
      return [...run.starts.slice(1).map((each) => line(x(each), "--soft")),
        ...run.rewinds.map((each) => line(axis === "step" ? each.came_from : x(each), "--bad"))].slice(-40);
    });
  }
  function drawn(plot, unit, fits, scale) {
    const style = getComputedStyle(document.documentElement);
    const [text, grid] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
    const traces = content.runs.flatMap((run, place) => lines(run, fits, scale).map((line, at) => ({
      type: "scatter",
      mode: line.series.value.length < 60 ? "lines+markers" : "lines",
      name: plotText([content.runs.length > 1 ? run.name : null, line.name].filter(Boolean).join(" ")),
      x: places(run, line.series),
      y: line.series.value.map((value) => (value === null ? null : value * scale)),
      line: { color: hue(place + at), width: 1.6, dash: DASHES[at % DASHES.length],
        shape: /^(world_size|skipped_steps)$/.test(line.name) ? "hv" : "linear" },
      marker: { size: 5 },
      connectgaps: false,
    })));
    const touch = matchMedia("(pointer: coarse)").matches;
    const layout = {
      autosize: true, margin: { l: 58, r: 10, t: touch ? 34 : 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, size: 12, family: "system-ui, sans-serif" }, hovermode: "x", hoverlabel: { namelength: 40 }, uirevision: axis,
      dragmode: touch ? false : "zoom", showlegend: false,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: style.getPropertyValue("--soft").trim(), activecolor: text },
      xaxis: { title: { text: axis === "step" ? "step" : "hours" }, gridcolor: grid, zerolinecolor: grid },
      yaxis: { title: { text: unit }, gridcolor: grid, zerolinecolor: grid, automargin: true, exponentformat: unit === "tokens/s" ? "SI" : "e", ...heights(traces, unit) },
      shapes: marks(),
    };
    return Plotly.react(plot, traces, layout, { ...PLAIN, displayModeBar: touch ? true : "hover",
      modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d"]] });
  }
  // From 0 on, for what has no negative values and no logarithm to look at.
  function heights(traces, unit) {
    const highest = Math.max(0, ...traces.flatMap((each) => each.y.filter((value) => value !== null)));
    if (unit === "nats a token" || traces.some((each) => each.y.some((value) => value < 0))) return {};
    return { range: [0, highest * 1.08 || 1], ...(highest <= 8 && unit === "ranks" ? { dtick: 1 } : {}) };
  }
  function figure(title, unit, fits, scale = 1) {
    const found = content.runs.flatMap((run, place) => lines(run, fits, scale).map((line, at) => [run, line, place, at]));
    if (!found.length) return null;
    const several = new Set(found.map(([, line]) => line.name)).size > 1;
    const plot = plots.get(title)?.plot || make("div", { class: "plot", "aria-hidden": "true" });
    plots.set(title, { plot, draw: () => drawn(plot, unit, fits, scale) });
    return make("figure", { "data-figure": title }, make("h3", {}, title), plot,
      make("figcaption", {}, ...found.map(([run, line, place, at]) => make("p", {},
        found.length > 1 ? make("span", { class: `key ${DASHES[at % DASHES.length]}`, colour: hue(place + at), "aria-hidden": "true" }) : null,
        caption(run, line, several)))));
  }
  function curves() {
    const choice = (value, label) => {
      const input = make("input", { type: "radio", name: "axis", value });
      input.checked = axis === value;
      input.addEventListener("change", () => { axis = value; draw(); main.querySelector("input[name=axis]:checked").focus(); });
      return make("label", {}, input, ` ${label}`);
    };
    const all = [...new Set(content.runs.flatMap((run) => Object.keys(run.series)))];
    const rest = all.filter((name) => !FIGURES.some(([, , fits]) => fits(name)));
    const more = fold("more", `${rest.length} more`);
    const grid = make("div", { class: "figures" });
    more.append(grid);
    more.addEventListener("toggle", () => {
      if (more.open && !grid.childElementCount) {
        grid.append(...rest.map((name) => figure(name, "", (each) => each === name)).filter(Boolean));
        rest.forEach((name) => plots.get(name)?.draw());
      }
    });
    const marked = content.runs.some((run) => run.starts.length > 1 || run.rewinds.length);
    return [
      make("fieldset", {}, make("legend", { class: "soft" }, "Horizontal axis"), choice("step", "step"), choice("time", "hours")),
      make("p", { class: "soft" }, "Drag over a figure to zoom, double-click to see all of it; on a touch screen use its buttons."
        + (marked ? " Dotted lines: restarts, and in red the steps from which the run went back." : "")),
      make("div", { class: "figures" }, ...FIGURES.map((each) => figure(...each)).filter(Boolean)),
      rest.length ? more : null,
    ];
  }

  // --- the other parts ---

  function card(run) {
    const latest = (name, scale = 1) => {
      const series = run.series[name];
      return series && series.last ? number(series.last.value * scale) : null;
    };
    const rows = [
      ["step", run.last_step === null ? number(run.step) : `${number(run.step)} of ${number(run.last_step)}`],
      ["loss", latest("loss")], ["validation loss", latest("valid_loss")],
      ["tokens per second", latest("tokens_per_s")], ["MFU", latest("mfu", 100) && `${latest("mfu", 100)} %`],
      ["ranks", number(run.ranks)], ["last wrote", ago(run.age_s)], ["folder", run.folder],
    ].filter(([, value]) => value !== null);
    return make("div", { class: "card", colour: colour(run) }, make("h3", {}, run.name),
      make("p", {}, make("span", { class: `state ${run.state}` }, run.state), run.why ? `: ${run.why}` : ""),
      make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
      run.refused_lines ? make("p", { class: "soft" }, `${number(run.refused_lines)} lines of metrics.jsonl are not log steps.`) : null,
      run.cut ? make("p", { class: "soft" }, "The end of metrics.jsonl is not shown: too much of it is not log steps, or it is longer than 4 GiB.") : null);
  }
  function waterfall(run) {
    const start = run.starts[run.starts.length - 1];
    if (!start) return null;
    let before = 0;
    const rows = Object.entries(start.parts).map(([name, seconds]) => {
      const bar = make("div", { class: "bar", "aria-hidden": "true" });
      bar.style.marginLeft = `${Math.min(99, (100 * before) / start.total)}%`;
      bar.style.width = `${Math.min(100, (100 * seconds) / start.total)}%`;
      before += seconds;
      return make("tr", {}, make("td", {}, name.replace(/_/g, " ")), make("td", {}, bar),
        make("td", { class: "number" }, `${seconds.toFixed(2)} s`));
    });
    return make("div", { colour: colour(run) }, named(run),
      make("p", {}, `${start.total.toFixed(2)} s from the command to the end of step ${number(start.step)}.`),
      make("table", { class: "waterfall" }, make("tbody", {}, ...rows)));
  }
  function happened(run) {
    const rows = [
      ...run.starts.map((each, at) => [each.time, at ? "restarted" : "started", `first step: ${number(each.step)}`]),
      ...run.rewinds.map((each) => [each.time, "rewound",
        `from step ${number(each.came_from)} to ${number(each.step)}, without samples ${number(each.first_sample)} to ${number(each.last_sample)}`]),
    ].sort((a, b) => a[0] - b[0]).map(([time, what, how]) => [when(time), what, how]);
    return rows.length ? make("div", {}, named(run), table(["when", "what", "where"], rows)) : null;
  }
  function schedule(run) {
    const pipe = run.pipeline;
    if (!pipe) return null;
    const said = `${pipe.stages} stages, ${number(pipe.micro_batches)} micro-batches a step: each stage waits for `
      + `${(100 * pipe.bubble).toFixed(1)} % of the time of a step, where all stages take equally long.`
      + (pipe.shown < pipe.micro_batches ? ` The first ${pipe.shown} micro-batches are drawn; the others repeat them.` : "");
    if (!pipe.rows.length) return make("div", {}, named(run), make("p", {}, said));
    const [side, left] = [22, 54];
    const svg = (tag, attributes, text) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      if (text !== undefined) element.textContent = text;
      return element;
    };
    const picture = svg("svg", { class: "schedule", width: left + side * pipe.rows[0].length, height: side * pipe.rows.length, "aria-hidden": "true" });
    pipe.rows.forEach((row, stage) => {
      picture.append(svg("text", { x: 0, y: stage * side + 15 }, `stage ${stage}`));
      row.forEach((does, time) => {
        const kind = does > 0 ? "forward" : does < 0 ? "backward" : "waits";
        picture.append(svg("rect", { class: kind, x: left + time * side, y: stage * side, width: side - 1, height: side - 1 }));
        if (does) picture.append(svg("text", { class: "in", x: left + time * side + side / 2, y: stage * side + 15 }, String(Math.abs(does) - 1)));
      });
    });
    const words = pipe.rows.map((row, stage) => `stage ${stage}: ` + row.map((does) =>
      (does === 0 ? "." : `${does > 0 ? "F" : "B"}${Math.abs(does) - 1}`)).join(" "));
    return make("div", {}, named(run), make("p", {}, said),
      make("p", { class: "soft" }, "Time runs to the right. Blue: the forward pass of the micro-batch with this number; orange: its backward pass; grey: the stage waits."),
      make("div", { class: "wide" }, picture), fold(`schedule ${run.name}`, "the same in words", make("pre", {}, words.join("\n"))));
  }
  function profile(run) {
    return run.profiles.length ? make("div", {}, named(run), ...run.profiles.flatMap((each) => [
      make("p", {}, `${each.name}, steps ${each.steps}, ${each.device}: the operations that took most time, without what they call.`),
      table(["operation", "calls", "ms on the CPU", "ms on the device"],
        each.ops.map((op) => [op.name, ...["calls", "cpu_ms", "device_ms"].map((name) => (typeof op[name] === "number" ? number(op[name]) : String(op[name])))]), [1, 2, 3]),
      make("p", { class: "soft" }, `Files: ${each.files.join(", ") || "none"}. Open a trace with ui.perfetto.dev.`),
    ])) : null;
  }
  const checkpoints = (run) => (run.checkpoints.length ? make("div", {}, named(run),
    table(["checkpoint", "step", "size", "written"], run.checkpoints.map((each) =>
      [each.latest ? `${each.name} (latest)` : each.name, number(each.step), bytes(each.bytes), when(each.time)]), [1, 2])) : null);
  const samples = (run) => (run.samples.length ? make("div", {}, named(run), ...run.samples.flatMap((each, at, every) => [
    each.step === every[at - 1]?.step ? null : make("h3", {}, `step ${number(each.step)}`),
    make("pre", { class: "text" }, each.text)])) : null);
  const messages = (run) => (run.messages.length ? fold(`messages ${run.name}`, `${run.name}: ${run.messages.length} messages`,
    table(["when", "step", "message"], run.messages.map((each) => [when(each.time), number(each.step), each.text]), [1])) : null);
  const environment = (run) => make("div", {}, named(run), table(["what", "value"], Object.entries(run.environment)));
  const attention = (run) => (run.attention ? make("div", {}, named(run),
    make("pre", { class: /[░▒▓█]/.test(run.attention) ? "drawing" : "text" }, run.attention)) : null);
  function config(run) {
    const rows = Object.entries(run.config);
    const search = make("input", { type: "search", placeholder: "search", "aria-label": `search the config of ${run.name}` });
    const shown = make("div", {});
    const fill = () => shown.replaceChildren(table(["key", "value"],
      rows.filter((row) => row.join(" ").toLowerCase().includes(search.value.toLowerCase()))));
    search.addEventListener("input", fill);
    fill();
    return fold(`config ${run.name}`, `${run.name}: ${rows.length} values`, search, shown);
  }
  const each = (part) => content.runs.map(part).filter(Boolean);
  function section(id, title, inner) {
    const found = inner.filter(Boolean);
    return found.length ? make("section", { id }, make("h2", {}, title), ...found) : null;
  }
  const of = (...names) => content.runs.map((run) => names.map((name) => run[name]));
  const PARTS = [
    ["curves", "Curves", curves, () => [axis, of("series", "starts", "rewinds")]],
    ["differences", "What differs between the runs", differences, () => content.differs],
    ["history", "Starts and rewinds", () => each(happened), () => of("starts", "rewinds")],
    ["startup", "Start-up", () => each(waterfall), () => of("starts")],
    ["pipeline", "Pipeline", () => each(schedule), () => of("pipeline")],
    ["profiles", "Profiles", () => each(profile), () => of("profiles")],
    ["attention", "Attention", () => each(attention), () => of("attention")],
    ["checkpoints", "Checkpoints", () => each(checkpoints), () => of("checkpoints")],
    ["samples", "Samples", () => each(samples), () => of("samples")],
    ["messages", "Messages", () => each(messages), () => of("messages")],
    ["environment", "Environment", () => each(environment), () => of("environment")],
    ["config", "Config", () => each(config), () => of("config")],
  ];
  const shown = new Map();
  function differences() {
    if (content.runs.length < 2) return [];
    return [content.differs.length ? table(["key", ...content.runs.map((run) => run.name)],
      content.differs.map((row) => [row.path, ...row.values])) : make("p", {}, "Nothing.")];
  }

  // Builds anew the parts whose content has changed; the others stay, with what is open, zoomed or typed in them.
  function draw(all = false) {
    const sections = PARTS.map(([id, title, build, about]) => {
      const key = JSON.stringify(about());
      const before = shown.get(id);
      if (!all && before?.key === key) return before.element;
      const open = new Set([...(before?.element?.querySelectorAll("details[open]") || [])].map((one) => one.dataset.key));
      const element = section(id, title, build());
      for (const details of element?.querySelectorAll("details") || []) details.open = open.has(details.dataset.key);
      shown.set(id, { key, element });
      return element;
    }).filter(Boolean);
    const said = !live ? `Written ${when(content.made)}.` : lost ? `The server does not answer; this is how it was ${when(content.made)}.`
      : `Live: read ${when(content.made)}.`;
    const top = [
      make("header", {}, make("h1", {}, content.runs.length > 1 ? `${content.runs.length} runs` : content.runs[0].name),
        make("span", { class: "soft", id: "said" }, said)),
      make("nav", { "aria-label": "Parts of the page" }, ...sections.map((one) =>
        make("a", { href: `#${one.id}` }, one.querySelector("h2").textContent))),
      make("div", { class: "cards" }, ...content.runs.map(card)),
    ];
    const there = [...main.querySelectorAll(":scope > section")];
    [...main.children].filter((one) => one.localName !== "section" || !sections.includes(one)).forEach((one) => one.remove());
    main.prepend(...top);
    let after = top[2];
    for (const one of sections) {
      if (after.nextElementSibling !== one) after.after(one);
      after = one;
    }
    for (const { plot, draw: paint } of plots.values()) {
      if (plot.isConnected && (all || !there.includes(plot.closest("section")))) paint();
    }
    main.setAttribute("aria-busy", "false");
  }
  async function refresh() {
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      content = await answer.json();
      lost = false;
    } catch {
      lost = true;
    }
    if (!document.hidden) draw();
  }
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  if (live) setInterval(refresh, 5000);
})();
