"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 4", "2 3", "10 3 2 3", "12 4", "4 2 1 2"];
  const SHAPES = ["circle", "square", "up", "diamond", "down", "plus", "cross", "star"];
  const page = document.documentElement;
  const live = document.body.hasAttribute("data-live");
  let charts = JSON.parse(document.getElementById("charts").textContent);

  // What a reader has chosen, by the id of the thing: it outlives what a live page replaces.
  const chosen = { hidden: {}, view: {}, sort: {}, table: {}, frame: {} };
  const hiddenOf = (scope) => (chosen.hidden[scope] ||= new Set());

  // ---------------------------------------------------------------- elements

  const el = (name, attributes = {}, ...children) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== "") node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };
  const html = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };
  const text = (x, y, words, attributes = {}) => {
    const node = el("text", { x, y, class: "tick", ...attributes });
    node.textContent = words;
    return node;
  };
  const shortened = (words, most) => (words.length > most ? words.slice(0, most - 1) + "…" : words);
  const say = (value, digits = 2) => {
    if (value === null || value === undefined) return "–";
    const rounded = Math.abs(value) >= 1000 ? value.toFixed(0) : String(+value.toFixed(digits));
    return rounded.replace("-", "−");
  };

  const shape = (kind, x, y, r, attributes) => {
    const at = (points) => points.map(([a, b]) => `${(x + a * r).toFixed(1)},${(y + b * r).toFixed(1)}`).join("L");
    const closed = (points) => el("path", { d: `M${at(points)}Z`, ...attributes });
    switch (kind) {
      case "square": return closed([[-.85, -.85], [.85, -.85], [.85, .85], [-.85, .85]]);
      case "up": return closed([[0, -1.1], [1, .8], [-1, .8]]);
      case "down": return closed([[0, 1.1], [1, -.8], [-1, -.8]]);
      case "diamond": return closed([[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]]);
      case "plus": return el("path", { d: `M${at([[-1, 0], [1, 0]])}M${at([[0, -1], [0, 1]])}`, ...attributes });
      case "cross": return el("path", { d: `M${at([[-.8, -.8], [.8, .8]])}M${at([[-.8, .8], [.8, -.8]])}`, ...attributes });
      case "star": return closed([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((i) => {
        const q = i % 2 ? .5 : 1.25;
        return [q * Math.sin(i * Math.PI / 5), -q * Math.cos(i * Math.PI / 5)];
      }));
      default: return el("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r, ...attributes });
    }
  };

  // ---------------------------------------------------------------- scales

  const ticks = (low, high, about) => {
    const rough = (high - low) / Math.max(1, about);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const values = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) values.push(+(k * step).toPrecision(12));
    return values;
  };
  const scale = (low, high, from, to) => (v) => from + ((v - low) / (high - low || 1)) * (to - from);
  const ends = (values, room = 0) => {
    const known = values.filter((v) => v !== null && v !== undefined);
    if (!known.length) return [0, 1];
    let low = Math.min(...known), high = Math.max(...known);
    if (low === high) { low -= Math.abs(low) * .05 || .5; high += Math.abs(high) * .05 || .5; }
    const more = (high - low) * room;
    return [low - more, high + more];
  };

  // ---------------------------------------------------------------- tooltip

  const tip = document.getElementById("tip");
  // Read aloud by screen readers.
  const announced = document.getElementById("announced");
  const showTip = (words, x, y, aloud) => {
    tip.textContent = words;
    tip.hidden = false;
    const wide = tip.offsetWidth, tall = tip.offsetHeight;
    tip.style.left = `${Math.max(4, Math.min(innerWidth - wide - 4, x + 14))}px`;
    tip.style.top = `${y - tall - 12 > 4 ? y - tall - 12 : y + 16}px`;
    if (aloud) announced.textContent = words.replaceAll("\n", ", ");
  };
  const hideTip = () => { tip.hidden = true; };
  addEventListener("scroll", hideTip, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

  const nearest = (places, x, y) => places.reduce((best, p) => {
    const d = (p.x - x) ** 2 + (p.y - y) ** 2;
    return best === null || d < best.d ? { d, p } : best;
  }, null)?.p ?? null;

  // A chart that can be read point by point: `near(x, y)` and `move(at, key)` give a place, `tell`
  // its words, position and mark.
  const readable = (plot, title, { near, move, tell }) => {
    let at = null;
    plot.setAttribute("tabindex", "0");
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-roledescription", "chart");
    plot.setAttribute("aria-label", `${title}. Arrow keys read the values.`);
    const mark = el("g", { "aria-hidden": "true", class: "reading" });
    plot.append(mark);
    const show = (place, aloud) => {
      at = place;
      mark.replaceChildren();
      if (place === null) return hideTip();
      const point = tell(place);
      const box = plot.getBoundingClientRect(), zoom = box.width / plot.viewBox.baseVal.width;
      mark.append(point.mark);
      showTip(point.words, box.left + point.x * zoom, box.top + point.y * zoom, aloud);
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect(), zoom = plot.viewBox.baseVal.width / box.width;
      show(near((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom), false);
    });
    plot.addEventListener("pointerleave", () => show(null));
    plot.addEventListener("blur", () => show(null));
    plot.addEventListener("keydown", (event) => {
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      show(move(at, event.key.slice(5)), true);
    });
  };

  const frameOf = (box, tall) => {
    const wide = Math.max(260, Math.round(box.clientWidth));
    const plot = el("svg", { class: "plot", viewBox: `0 0 ${wide} ${tall}`, "font-family": "inherit" });
    return [plot, wide];
  };

  // ---------------------------------------------------------------- legends and choices

  // Ten colours have names in the style sheet; where there are more classes, each has a hue.
  const hue = (i, count) => `hsl(${(360 * i / count).toFixed(1)} 70% ${i % 2 ? 42 : 58}%)`;
  const inside = (i, count) => (count > 10 ? { stroke: hue(i, count), fill: hue(i, count) } : { class: `s${i % 10} f${i % 10}` });
  const outline = (i, count) => (count > 10 ? { stroke: hue(i, count), class: "ellipse" } : { class: `ellipse s${i % 10}` });
  const swatch = (i, marker, count = 0) => {
    const svg = el("svg", { width: 26, height: 12, "aria-hidden": "true" });
    if (marker !== "box") svg.append(el("line", { x1: 0, x2: 26, y1: 6, y2: 6, class: `s${i % 10}`, "stroke-width": 2, "stroke-dasharray": DASHES[i % DASHES.length] }));
    svg.append(shape(marker === "box" ? "square" : SHAPES[i % SHAPES.length], 13, 6, 4, inside(i, count)));
    return svg;
  };
  const legend = (scope, keys, marker, redraw, colours = keys.map((_, i) => i), count = 0) => keys.map((key, i) => {
    const hidden = hiddenOf(scope);
    const button = html("button", { type: "button", class: "key", id: `key-${scope}-${i}`, "aria-pressed": String(!hidden.has(key)) }, swatch(colours[i], marker, count), key);
    button.addEventListener("click", () => {
      hidden.has(key) ? hidden.delete(key) : hidden.add(key);
      button.setAttribute("aria-pressed", String(!hidden.has(key)));
      redraw();
    });
    return button;
  });
  const chooser = (id, label, names, current, change) => {
    const select = html("select", { id });
    names.forEach((name, i) => select.append(new Option(name, i, false, i === current)));
    select.addEventListener("change", () => change(select.selectedIndex));
    return html("label", {}, `${label} `, select);
  };

  const legendBar = (box, name, keys, marker) => {
    if (keys.length < 2) return;
    box.append(html("div", { class: "controls" }, ...legend(name, keys, marker, () => { draw(name); refocus(); })));
  };
  // Drawing anew replaces the button that was pressed; the keyboard must stay where it was.
  let lastFocused = null;
  const refocus = () => { if (lastFocused) document.getElementById(lastFocused)?.focus(); };
  addEventListener("focusin", (event) => { lastFocused = event.target.id || null; });

  // ---------------------------------------------------------------- lines

  const drawLines = (box, name, spec) => {
    const scope = spec.group || name;
    const view = spec.views[Math.min(chosen.view[scope] || 0, spec.views.length - 1)];
    if (!spec.group) {
      legendBar(box, name, spec.keys, "line");
      if (spec.views.length > 1) box.append(html("div", { class: "controls" }, chooser(`${name}-view`, "Model", spec.views.map((v) => v.name), chosen.view[scope] || 0, (i) => { chosen.view[scope] = i; draw(name); refocus(); })));
    }
    const all = view ? view.series : [];
    const shown = all.filter((s) => !hiddenOf(scope).has(s.key) && s.x.length);
    const tall = 290, [plot, wide] = frameOf(box, tall);
    const left = 50, right = wide - 14, top = 12, bottom = tall - 44;
    const [x0, x1] = spec.diagonal ? [0, 1] : ends(all.flatMap((s) => s.x));
    const [y0, y1] = spec.diagonal ? [0, 1] : ends(shown.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]), .04);
    const sx = scale(x0, x1, left, right), sy = scale(y0, y1, bottom, top);
    for (const t of ticks(y0, y1, 5)) plot.append(el("line", { x1: left, x2: right, y1: sy(t), y2: sy(t), class: "grid" }), text(left - 7, sy(t) + 4, say(t), { "text-anchor": "end" }));
    for (const t of ticks(x0, x1, wide / 70)) plot.append(text(sx(t), bottom + 17, say(t, 3), { "text-anchor": "middle" }));
    plot.append(el("path", { d: `M${left} ${top}V${bottom}H${right}`, class: "axis" }),
      text((left + right) / 2, tall - 8, spec.xlabel, { "text-anchor": "middle" }),
      text(0, 0, spec.ylabel, { "text-anchor": "middle", transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)` }));
    if (spec.diagonal) plot.append(el("line", { x1: left, y1: bottom, x2: right, y2: top, class: "reference" }));
    if (!shown.length) plot.append(text((left + right) / 2, (top + bottom) / 2, all.some((s) => s.x.length) ? "all curves are hidden" : "nothing was scored yet", { "text-anchor": "middle" }));
    const places = [];
    for (const s of shown) {
      const i = spec.keys.indexOf(s.key), path = (ys) => s.x.map((x, k) => `${sx(x).toFixed(1)} ${sy(ys[k]).toFixed(1)}`);
      if (s.low) plot.append(el("path", { d: `M${path(s.low).join("L")}L${path(s.high).reverse().join("L")}Z`, class: `band f${i % 10}` }));
      plot.append(el("path", { d: `M${path(s.y).join("L")}`, class: `line s${i % 10}`, "stroke-dasharray": DASHES[i % DASHES.length], "data-key": s.key }));
      const every = spec.dots ? 1 : Math.max(1, Math.ceil(s.x.length / 8));
      s.x.forEach((x, k) => {
        if (k % every === 0 || k === s.x.length - 1) plot.append(shape(SHAPES[i % SHAPES.length], sx(x), sy(s.y[k]), 3.6, { class: `s${i % 10} f${i % 10}` }));
        places.push({ s, k, x: sx(x), y: sy(s.y[k]) });
      });
    }
    const find = (s, k) => places.find((p) => p.s === s && p.k === k) || null;
    readable(plot, spec.title, {
      near: (x, y) => nearest(places, x, y),
      move: (at, way) => {
        if (!places.length) return null;
        if (!at) return places[0];
        const row = shown.indexOf(at.s);
        if (way === "Left") return find(at.s, Math.max(0, at.k - 1));
        if (way === "Right") return find(at.s, Math.min(at.s.x.length - 1, at.k + 1));
        const next = shown[(row + (way === "Up" ? shown.length - 1 : 1)) % shown.length];
        return find(next, Math.min(at.k, next.x.length - 1));
      },
      tell: ({ s, k, x, y }) => {
        const beside = shown.filter((o) => o !== s && !spec.diagonal).map((o) => [o, o.x.indexOf(s.x[k])]).filter(([, j]) => j >= 0);
        const head = s.round && spec.xlabel !== "round" ? `round ${s.round[k]}, ${say(s.x[k], 3)} ${spec.xlabel}` : `${spec.xlabel} ${say(s.x[k], 3)}`;
        const one = (o, j) => `${o.key}: ${say(o.y[j])}${o.low ? ` (${say(o.low[j])} to ${say(o.high[j])})` : ""}${o.weight ? `, ${o.weight[j]} rows` : ""}`;
        return { words: [head, one(s, k), ...beside.map(([o, j]) => one(o, j))].join("\n"), x, y, mark: el("circle", { cx: x, cy: y, r: 7, class: "here" }) };
      },
    });
    box.append(plot);
  };

  // ---------------------------------------------------------------- bars

  const drawBars = (box, name, spec) => {
    const keys = spec.series.map((s) => s.key);
    legendBar(box, name, keys, "box");
    const shown = spec.series.filter((s) => !hiddenOf(name).has(s.key));
    const tall = 290, [plot, wide] = frameOf(box, tall);
    const left = 56, right = wide - 10, top = 14, bottom = tall - 48;
    const values = shown.flatMap((s) => [...s.values, ...(s.high || []), ...(s.low || [])]);
    const [low, high] = ends([0, ...values, ...spec.references.map((r) => r.value)]);
    const sy = scale(Math.min(0, low), high * 1.05, bottom, top);
    const step = (right - left) / spec.groups.length, bar = Math.min(34, step * .8 / Math.max(1, shown.length));
    for (const t of ticks(Math.min(0, low), high, 5)) plot.append(el("line", { x1: left, x2: right, y1: sy(t), y2: sy(t), class: "grid" }), text(left - 7, sy(t) + 4, say(t), { "text-anchor": "end" }));
    const every = Math.ceil(spec.groups.length * 26 / (right - left)), most = Math.max(3, Math.floor(step * every / 7));
    const places = [];
    spec.groups.forEach((group, g) => {
      const middle = left + (g + .5) * step;
      if (g % every === 0) plot.append(text(middle, bottom + 16, shortened(group, most), { "text-anchor": "middle" }));
      shown.forEach((s, j) => {
        if (s.values[g] === null) return;
        const x = middle + (j - shown.length / 2) * bar, y = sy(s.values[g]), i = keys.indexOf(s.key);
        plot.append(el("rect", { x: x + 1, width: Math.max(1, bar - 2), y: Math.min(y, sy(0)), height: Math.abs(sy(0) - y), class: `f${i % 10}` }));
        if (s.low && s.low[g] !== null && s.high[g] > s.low[g]) plot.append(el("path", { d: `M${x + bar / 2} ${sy(s.low[g])}V${sy(s.high[g])}m-4 0h8M${x + bar / 2 - 4} ${sy(s.low[g])}h8`, class: "whisker" }));
        places.push({ g, j, x: x + bar / 2, y, words: `${group}\n${s.key}: ${say(s.values[g], 3)}${s.low && s.low[g] !== null ? ` (${say(s.low[g], 3)} to ${say(s.high[g], 3)})` : ""}` });
      });
    });
    for (const r of spec.references) plot.append(el("line", { x1: left, x2: right, y1: sy(r.value), y2: sy(r.value), class: "reference" }), text(right, sy(r.value) - 4, `${r.name} ${say(r.value)}`, { "text-anchor": "end", class: "reference-name" }));
    plot.append(el("path", { d: `M${left} ${top}V${bottom}H${right}`, class: "axis" }),
      text((left + right) / 2, tall - 10, spec.xlabel || "layer", { "text-anchor": "middle" }),
      text(0, 0, spec.ylabel, { "text-anchor": "middle", transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)` }));
    readable(plot, spec.title, {
      near: (x) => places.reduce((best, p) => (best === null || Math.abs(p.x - x) < Math.abs(best.x - x) ? p : best), null),
      move: (at, way) => {
        const i = places.indexOf(at) + (way === "Left" || way === "Up" ? -1 : 1);
        return places[Math.max(0, Math.min(places.length - 1, i))] || null;
      },
      tell: (p) => ({ ...p, mark: el("circle", { cx: p.x, cy: p.y, r: 5, class: "here" }) }),
    });
    box.append(plot);
  };

  // ---------------------------------------------------------------- gains of clients

  const drawStrip = (box, name, spec) => {
    const lane = 52, tall = spec.strips.length * lane + 50;
    const [plot, wide] = frameOf(box, tall);
    const left = 12, right = wide - 12, bottom = tall - 42;
    const [low, high] = ends([0, ...spec.strips.flatMap((s) => s.values)], .03);
    const sx = scale(low, high, left, right);
    for (const t of ticks(low, high, wide / 90)) plot.append(el("line", { x1: sx(t), x2: sx(t), y1: 4, y2: bottom, class: "grid" }), text(sx(t), bottom + 17, (t > 0 ? "+" : "") + say(t), { "text-anchor": "middle" }));
    plot.append(el("line", { x1: sx(0), x2: sx(0), y1: 4, y2: bottom, class: "zero" }));
    const places = [];
    spec.strips.forEach((s, row) => {
      const y = row * lane + 34, order = s.values.map((v, i) => i).sort((a, b) => s.values[a] - s.values[b]);
      const lost = s.values.filter((v) => v < 0).length;
      plot.append(text(left, row * lane + 16, `${shortened(s.key, Math.floor(wide / 11))}: ${lost} of ${s.values.length} below zero`, { class: "name row" }));
      const last = [-99, -99, -99];
      for (const i of order) {
        const v = s.values[i], x = sx(v);
        let level = last.findIndex((end) => x - end > 8);
        if (level < 0) level = i % 3;
        last[level] = x;
        const tone = v < 0 ? "down" : v > 0 ? "up" : "flat-gain", cy = y + [0, -7, 7][level];
        plot.append(shape(v < 0 ? "down" : v > 0 ? "up" : "circle", x, cy, 4.2, { class: `dot ${tone}${s.clear[i] ? "" : " open"}` }));
        places.push({ row, x, y: cy, words: `${s.key}\nclient ${s.names[i]}: ${v > 0 ? "+" : ""}${say(v)} points${s.clear[i] ? "" : ", within noise"}` });
      }
    });
    plot.append(text((left + right) / 2, tall - 8, `gain in ${spec.ylabel}`, { "text-anchor": "middle" }));
    readable(plot, spec.title, {
      near: (x, y) => nearest(places, x, y),
      move: (at, way) => {
        if (!at) return places[0] || null;
        if (way === "Left" || way === "Right") return places[Math.max(0, Math.min(places.length - 1, places.indexOf(at) + (way === "Left" ? -1 : 1)))];
        const row = (at.row + (way === "Up" ? spec.strips.length - 1 : 1)) % spec.strips.length;
        return places.find((p) => p.row === row) || at;
      },
      tell: (p) => ({ ...p, mark: el("circle", { cx: p.x, cy: p.y, r: 8, class: "here" }) }),
    });
    box.append(plot);
  };

  // ---------------------------------------------------------------- heat maps

  const drawHeat = (box, name, spec) => {
    const count = spec.frames.length, current = Math.min(chosen.frame[name] ?? (spec.choose ? 0 : count - 1), count - 1);
    const frame = spec.frames[current];
    const change = (i) => { chosen.frame[name] = i; paint(); };
    if (count > 1) {
      const bar = html("div", { class: "controls" });
      if (spec.choose) bar.append(chooser(`${name}-frame`, spec.choose[0].toUpperCase() + spec.choose.slice(1), spec.frames.map((f) => f.name), current, (i) => { change(i); }));
      else {
        const range = html("input", { type: "range", id: `${name}-frame`, min: 0, max: count - 1, step: 1, value: current, "aria-valuetext": frame.name });
        const words = html("output", { for: `${name}-frame` }, frame.name);
        range.addEventListener("input", () => { change(+range.value); words.textContent = spec.frames[+range.value].name; range.setAttribute("aria-valuetext", words.textContent); });
        bar.append(html("label", {}, "Round ", range, words));
      }
      box.append(bar);
    }
    const place = html("div");
    box.append(place);
    const paint = () => {
      hideTip();
      place.replaceChildren(heatPlot(place, spec, spec.frames[Math.min(chosen.frame[name] ?? current, count - 1)]));
    };
    paint();
  };
  const heatPlot = (place, spec, frame) => {
    const rows = frame.rows.length, cols = frame.cols.length;
    const longest = Math.max(...frame.rows.map((r) => r.length));
    const left = 34 + Math.min(90, longest * 7), wide = Math.max(260, Math.round(place.clientWidth));
    const cell = Math.max(4, Math.min(40, (wide - left - 8) / cols));
    const named = Math.max(...frame.cols.map((c) => c.length)) * 7 > cell - 2;
    const below = named ? Math.min(84, 14 + 6.2 * Math.max(...frame.cols.map((c) => c.length))) : 18;
    const bottom = 6 + rows * cell, tall = bottom + below + 22;
    const plot = el("svg", { class: "plot", viewBox: `0 0 ${wide} ${tall}` });
    const everyRow = Math.ceil(13 / cell), everyCol = Math.ceil(13 / cell);
    frame.rows.forEach((r, i) => { if (i % everyRow === 0) plot.append(text(left - 6, 6 + (i + .5) * cell + 4, shortened(r, 13), { "text-anchor": "end" })); });
    frame.cols.forEach((c, j) => {
      if (j % everyCol) return;
      const x = left + (j + .5) * cell, y = bottom + 14;
      plot.append(named ? text(0, 0, shortened(c, 13), { "text-anchor": "end", transform: `translate(${x + 4} ${y - 4}) rotate(-60)` }) : text(x, y, c, { "text-anchor": "middle" }));
    });
    frame.values.forEach((row, i) => row.forEach((v, j) => {
      const x = left + j * cell, y = 6 + i * cell, box = { x, y, width: cell - 1, height: cell - 1 };
      plot.append(el("rect", { ...box, class: "cell-back" }));
      if (v === null) return;
      const share = Math.max(0, Math.min(1, v / spec.max));
      plot.append(el("rect", { ...box, class: "cell", "fill-opacity": share.toFixed(3) }));
      if (cell >= 30) plot.append(text(x + cell / 2, y + cell / 2 + 4, v === 0 ? "0" : v.toFixed(2).replace(/^0/, ""), { class: `cell-text${share > .5 ? " on" : ""}` }));
    }));
    if (frame.marked) frame.marked.forEach((row, i) => row.forEach((m, j) => { if (m) plot.append(el("rect", { x: left + j * cell + .5, y: 6 + i * cell + .5, width: cell - 2, height: cell - 2, class: "marked" })); }));
    plot.append(text(left + cols * cell / 2, tall - 4, spec.xlabel, { "text-anchor": "middle" }),
      text(0, 0, spec.ylabel, { "text-anchor": "middle", transform: `translate(12 ${6 + rows * cell / 2}) rotate(-90)` }));
    const inside = (i, j) => [Math.max(0, Math.min(rows - 1, i)), Math.max(0, Math.min(cols - 1, j))];
    readable(plot, `${spec.title}, ${frame.name}`, {
      near: (x, y) => {
        const i = Math.floor((y - 6) / cell), j = Math.floor((x - left) / cell);
        return i >= 0 && j >= 0 && i < rows && j < cols ? [i, j] : null;
      },
      move: (at, way) => {
        if (!at) return [0, 0];
        const [di, dj] = { Up: [-1, 0], Down: [1, 0], Left: [0, -1], Right: [0, 1] }[way];
        return inside(at[0] + di, at[1] + dj);
      },
      tell: ([i, j]) => ({
        words: `${spec.ylabel} ${frame.rows[i]}, ${spec.xlabel} ${frame.cols[j]}\n${say(frame.values[i][j], spec.digits)}`,
        x: left + (j + .5) * cell, y: 6 + (i + .5) * cell,
        mark: el("rect", { x: left + j * cell, y: 6 + i * cell, width: cell, height: cell, class: "here" }),
      }),
    });
    return plot;
  };

  // ---------------------------------------------------------------- scatter

  const drawScatter = (box, name, spec) => {
    const view = spec.views[Math.min(chosen.view[name] || 0, spec.views.length - 1)];
    if (!view) return;
    if (spec.views.length > 1) box.append(html("div", { class: "controls" }, chooser(`${name}-view`, "Client", spec.views.map((v) => v.name), chosen.view[name] || 0, (i) => { chosen.view[name] = i; draw(name); refocus(); })));
    const labels = [...new Set(view.panels.flatMap((p) => p.points.map((q) => q[2])))].sort((a, b) => a - b);
    const count = 1 + Math.max(...spec.views.flatMap((v) => v.panels.flatMap((p) => p.points.map((q) => q[2]))));
    const hidden = hiddenOf(name);
    box.append(html("div", { class: "controls" }, ...legend(name, labels.map((l) => `class ${l}`), "box", () => { draw(name); refocus(); }, labels, count)));
    const wide = Math.max(260, Math.round(box.clientWidth)), beside = wide >= 520 ? view.panels.length : 1;
    const side = Math.min(420, wide / Math.max(1, beside) - 8), tall = side + 26;
    const around = view.panels.flatMap((p) => p.ellipses.flatMap(([x, y, a]) => [[x - a, y - a], [x + a, y + a]]));
    const all = [...view.panels.flatMap((p) => p.points), ...around], [x0, x1] = ends(all.map((p) => p[0]), .05), [y0, y1] = ends(all.map((p) => p[1]), .05);
    const reach = spec.equal ? Math.max(x1 - x0, y1 - y0) : 0, half = (a, b) => (reach ? [(a + b - reach) / 2, (a + b + reach) / 2] : [a, b]);
    const plot = el("svg", { class: "plot", viewBox: `0 0 ${wide} ${tall * Math.ceil(view.panels.length / beside)}` });
    const places = [];
    view.panels.forEach((panel, k) => {
      const left = (k % beside) * (wide / beside), top = Math.floor(k / beside) * tall + 20;
      const sx = scale(...half(x0, x1), left + 4, left + side - 4), sy = scale(...half(y0, y1), top + side - 4, top + 4);
      plot.append(text(left + 4, top - 6, panel.name, { class: "name row" }), el("rect", { x: left + .5, y: top, width: side - 1, height: side - 1, class: "axis" }));
      for (const [x, y, label, cid] of panel.points) {
        if (hidden.has(`class ${label}`)) continue;
        const s = SHAPES[Math.max(0, spec.shapes.indexOf(cid)) % SHAPES.length];
        plot.append(shape(s, sx(x), sy(y), 3, { ...inside(label, count), "fill-opacity": .55, "stroke-width": .8 }));
        places.push({ x: sx(x), y: sy(y), words: `${panel.name}\nclass ${label}, client ${cid}` });
      }
      for (const [x, y, a, b, angle, label] of panel.ellipses) {
        if (hidden.has(`class ${label}`)) continue;
        const zoom = (side - 8) / (reach || x1 - x0);
        plot.append(el("ellipse", { rx: a * zoom, ry: b * zoom, transform: `translate(${sx(x)} ${sy(y)}) rotate(${-angle * 180 / Math.PI})`, ...outline(label, count) }));
      }
    });
    readable(plot, spec.title, {
      near: (x, y) => places.reduce((best, p) => {
        const d = (p.x - x) ** 2 + (p.y - y) ** 2;
        return d < 400 && (best === null || d < best.d) ? { d, p } : best;
      }, null)?.p ?? null,
      move: (at, way) => places[Math.max(0, Math.min(places.length - 1, places.indexOf(at) + (way === "Left" || way === "Up" ? -1 : 1)))] || null,
      tell: (p) => ({ ...p, mark: el("circle", { cx: p.x, cy: p.y, r: 7, class: "here" }) }),
    });
    box.append(plot);
    if (spec.shapes.length) {
      const keys = spec.shapes.map((cid, i) => {
        const svg = el("svg", { width: 14, height: 12, "aria-hidden": "true" }, shape(SHAPES[i % SHAPES.length], 7, 6, 4, { class: "s6 f6" }));
        return html("span", { class: "key quiet" }, svg, `client ${cid}`);
      });
      box.append(html("div", { class: "controls" }, ...keys));
    }
  };

  // ---------------------------------------------------------------- all charts

  const KINDS = { lines: drawLines, bars: drawBars, strip: drawStrip, heat: drawHeat, scatter: drawScatter };
  const draw = (name) => {
    const box = document.getElementById(name), spec = charts[name];
    if (!box || !spec) return;
    hideTip();
    box.replaceChildren();
    KINDS[spec.kind](box, name, spec);
  };
  const drawGroup = (group) => Object.keys(charts).filter((n) => charts[n].group === group).forEach(draw);

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar comes and goes
    width = innerWidth;
    Object.keys(charts).forEach((name) => { if (!document.getElementById(name)?.closest("[hidden]")) draw(name); });
  });

  // ---------------------------------------------------------------- tables

  const sortBy = (table, column, direction) => {
    const value = (row) => row.cells[column].dataset.sort;
    const numeric = [...table.tBodies[0].rows].every((row) => value(row) === undefined || !isNaN(value(row)));
    const order = (a, b) => {
      const x = value(a), y = value(b);
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return direction * (numeric ? x - y : x.localeCompare(y));
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    [...table.tHead.rows[0].cells].forEach((th, i) => {
      if (i === column) th.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    });
  };
  const enhanceTable = (table) => {
    [...table.tHead.rows[0].cells].forEach((th, i) => {
      const button = th.querySelector("button");
      button.id = `${table.id}-sort-${i}`;
      button.addEventListener("click", () => {
        const upFirst = !th.classList.contains("num") || i === 0;
        const now = th.getAttribute("aria-sort");
        const direction = now === "ascending" ? -1 : now === "descending" ? 1 : upFirst ? 1 : -1;
        chosen.sort[table.id] = [i, direction];
        sortBy(table, i, direction);
        announced.textContent = `sorted by ${button.textContent}, ${direction > 0 ? "ascending" : "descending"}`;
      });
    });
    if (chosen.sort[table.id]) sortBy(table, ...chosen.sort[table.id]);
  };

  // What a header means, on hovering, on focus and so also on a tap; `title` is for pages without
  // scripts.
  const enhanceHint = (node) => {
    const hint = node.title;
    node.removeAttribute("title");
    node.dataset.hint = "";
    node.setAttribute("aria-description", hint);
    const show = () => { const box = node.getBoundingClientRect(); showTip(hint, box.left, box.top, false); };
    node.addEventListener("pointerenter", show);
    node.addEventListener("focus", show);
    node.addEventListener("pointerleave", hideTip);
    node.addEventListener("blur", hideTip);
  };

  // A box that is wider than the screen says so until it has been moved.
  const enhanceScroll = (box) => {
    const measure = () => box.classList.toggle("more", !("moved" in box.dataset) && box.scrollWidth > box.clientWidth + 4);
    new ResizeObserver(measure).observe(box);
    box.addEventListener("scroll", () => { if (box.scrollLeft > 8) { box.dataset.moved = ""; measure(); } }, { passive: true });
  };

  // ---------------------------------------------------------------- downloads

  const save = (name, type, words) => {
    const address = URL.createObjectURL(new Blob([words], { type }));
    const link = html("a", { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  };
  const csvOf = (table) => {
    const quoted = (words) => (/[",\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words);
    const plain = (cell) => cell.innerText.replaceAll("−", "-").replace(/^–$/, "").replaceAll("\n", " ").trim();
    return [...table.rows].map((row) => [...row.cells].map((cell) => quoted(plain(cell))).join(",")).join("\n") + "\n";
  };
  const addCsvButton = (table) => {
    const button = html("button", { type: "button", class: "save", id: `${table.id}-csv`, "aria-label": `Download as CSV: ${table.caption.textContent}` }, "CSV");
    button.addEventListener("click", () => save(`${table.id}.csv`, "text/csv", csvOf(table)));
    table.caption.querySelector("span").append(" ", button);
  };

  // A drawing that looks the same without this page's styles: they are written into its elements.
  const STYLES = ["fill", "fill-opacity", "stroke"], LINE_STYLES = ["stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order"], TEXT_STYLES = ["font-size", "font-family", "text-anchor"];
  const svgOf = (plot, keys) => {
    const view = plot.viewBox.baseVal;
    const [wide, tall] = view?.width ? [view.width, view.height] : [plot.clientWidth, plot.clientHeight];
    const copy = plot.cloneNode(true), lines = keys.length * 18;
    copy.querySelectorAll(".reading").forEach((mark) => mark.remove());
    keys.forEach((key, i) => {
      const y = tall + 18 * i + 4, sign = key.querySelector("svg").cloneNode(true);
      sign.setAttribute("x", 12);
      sign.setAttribute("y", y);
      copy.append(sign, text(44, y + 10, key.textContent));
    });
    const paper = el("rect", { width: wide, height: tall + lines + 8, class: "paper" });
    copy.prepend(paper);
    for (const name of ["tabindex", "role", "aria-label", "aria-roledescription"]) copy.removeAttribute(name);
    for (const [key, value] of Object.entries({ xmlns: SVG, width: wide, height: tall + lines + 8, viewBox: `0 0 ${wide} ${tall + lines + 8}` })) copy.setAttribute(key, value);
    const stage = html("div", { class: "chart unseen" }, copy); // styles exist only within the page
    document.body.append(stage);
    for (const node of copy.querySelectorAll("*")) {
      const style = getComputedStyle(node);
      const names = [...STYLES, ...(style.stroke === "none" ? [] : LINE_STYLES), ...(node.nodeName === "text" ? TEXT_STYLES : [])];
      for (const name of names) node.setAttribute(name, style.getPropertyValue(name));
    }
    stage.remove();
    copy.querySelectorAll("[class]").forEach((node) => node.removeAttribute("class"));
    copy.removeAttribute("class");
    return new XMLSerializer().serializeToString(copy);
  };
  const addSvgButton = (box, name, keys) => {
    const button = html("button", { type: "button", class: "save", id: `${name}-svg`, "aria-label": `Download as SVG: ${box.closest("figure").querySelector("figcaption strong").textContent}` }, "SVG");
    button.addEventListener("click", () => save(`${name}.svg`, "image/svg+xml", svgOf(box.querySelector("svg.plot, :scope > svg"), keys())));
    box.closest("figure").append(button);
  };
  const keysOf = (box) => {
    const group = charts[box.id].group;
    const bar = group ? document.querySelector(`[data-controls="${CSS.escape(group)}"]`) : box;
    return [...bar.querySelectorAll("button.key[aria-pressed='true'], span.key")];
  };

  const enhance = (root) => {
    root.querySelectorAll("table.sortable").forEach(enhanceTable);
    root.querySelectorAll("table").forEach(addCsvButton);
    root.querySelectorAll("th [title], th[title]").forEach(enhanceHint);
    root.querySelectorAll(".scroll").forEach(enhanceScroll);
    root.querySelectorAll(".chart").forEach((box) => addSvgButton(box, box.id, () => keysOf(box)));
    root.querySelectorAll(".picture").forEach((box) => addSvgButton(box, box.closest("section").id, () => []));
    root.querySelectorAll("[data-controls]").forEach((bar) => {
      const group = bar.dataset.controls, spec = Object.values(charts).find((c) => c.group === group);
      if (!spec) return;
      bar.replaceChildren(...legend(group, spec.keys, "line", () => drawGroup(group)));
      if (spec.views.length > 1) bar.append(chooser(`${group}-view`, "Model", spec.views.map((v) => v.name), chosen.view[group] || 0, (i) => { chosen.view[group] = i; drawGroup(group); }));
    });
    root.querySelectorAll("[data-choose]").forEach((bar) => {
      const name = bar.dataset.choose, box = root.querySelector(`[data-choices="${name}"]`);
      const tables = [...box.children], names = tables.map((t) => t.dataset.choice);
      if (names.length < 2) return;
      const show = (i) => {
        chosen.table[name] = names[i];
        tables.forEach((t, j) => { t.hidden = i !== j; });
        tables[i].querySelectorAll(".chart").forEach((chart) => draw(chart.id)); // hidden, it has no width
      };
      const first = Math.max(0, names.indexOf(chosen.table[name] ?? box.dataset.first));
      bar.replaceChildren(chooser(`${name}-choice`, "Method", names, first, show));
      show(first);
    });
    root.querySelectorAll("[data-copy]").forEach((box) => {
      const button = html("button", { type: "button", id: `${box.dataset.copy}-copy` }, "Copy");
      button.addEventListener("click", async () => {
        const code = document.getElementById(box.dataset.copy);
        try {
          await navigator.clipboard.writeText(code.textContent);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(code); // where scripts may not write the clipboard
        }
      });
      const buttons = html("div", { class: "buttons" }, button);
      if (box.dataset.save) {
        const download = html("button", { type: "button", id: `${box.dataset.copy}-save` }, "Download");
        download.addEventListener("click", () => save(box.dataset.save, "text/plain", document.getElementById(box.dataset.copy).textContent));
        buttons.append(download);
      }
      box.prepend(buttons);
    });
    root.querySelectorAll(".chart").forEach((box) => { if (!box.closest("[hidden]")) draw(box.id); });
  };

  // ---------------------------------------------------------------- buttons

  const theme = document.getElementById("theme");
  const dark = () => (page.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const nameTheme = () => theme.setAttribute("aria-pressed", String(dark()));
  theme.addEventListener("click", () => { page.dataset.theme = dark() ? "light" : "dark"; nameTheme(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();
  document.getElementById("print").addEventListener("click", () => print());

  // ---------------------------------------------------------------- a run that goes on

  const main = document.getElementById("main");
  const served = {}, drawn = {};
  let touched = 0, stamp = null;
  addEventListener("input", () => { touched = Date.now(); });
  addEventListener("pointerdown", () => { touched = Date.now(); });
  // A list that is open, or a slider that is held, must not vanish under the hand.
  const busy = () => ["SELECT", "INPUT"].includes(document.activeElement?.tagName) && Date.now() - touched < 6000;

  const placesIn = (section) => ({
    open: [...section.querySelectorAll("details[open]")].map((d) => d.id),
    scrolled: [...section.querySelectorAll(".scroll")].map((s) => [s.querySelector("table")?.id, s.scrollLeft]),
  });
  const restore = (section, places) => {
    places.open.forEach((id) => { if (id) section.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", ""); });
    places.scrolled.forEach(([id, x]) => { const at = id && section.querySelector(`#${CSS.escape(id)}`)?.parentElement; if (at) at.scrollLeft = x; });
  };
  const renew = (fresh) => {
    const parsed = document.createElement("template");
    parsed.innerHTML = fresh.main;
    const focused = document.activeElement?.id, before = drawn.charts || {};
    charts = fresh.charts;
    const texts = Object.fromEntries(Object.entries(charts).map(([k, v]) => [k, JSON.stringify(v)]));
    const sections = [...parsed.content.children], named = new Set(sections.map((section) => section.id));
    let previous = null;
    for (const section of sections) {
      const old = document.getElementById(section.id), words = section.outerHTML;
      const same = old && served[section.id] === words;
      if (!same) {
        const places = old ? placesIn(old) : null;
        if (old) old.replaceWith(section);
        else if (previous) previous.after(section);
        else main.prepend(section);
        if (places) restore(section, places);
        enhance(section);
        served[section.id] = words;
      }
      previous = document.getElementById(section.id);
      if (same) previous.querySelectorAll(".chart").forEach((box) => { if (texts[box.id] !== before[box.id]) draw(box.id); });
    }
    [...main.children].forEach((old) => { if (!named.has(old.id)) old.remove(); });
    document.title = document.querySelector("h1").textContent = fresh.title;
    drawn.charts = texts;
    if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };
  const poll = async () => {
    const line = document.getElementById("live"), words = document.getElementById("live-words"), bar = document.getElementById("live-bar");
    let ended = false;
    try {
      const answer = await fetch("/data", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = await answer.json();
      ended = fresh.ended;
      bar.max = fresh.of;
      bar.value = fresh.done;
      line.classList.remove("lost");
      words.textContent = fresh.words;
      if (fresh.stamp !== stamp && !busy()) { renew(fresh); stamp = fresh.stamp; }
      else if (fresh.stamp !== stamp) ended = false;
    } catch {
      line.classList.add("lost");
      words.textContent = "No contact: the run has stopped or ended. Trying again …";
    }
    if (!ended) setTimeout(poll, 2000);
  };

  enhance(document);
  if (live) poll();
})();
