// Draws the readings of one device quantity as they come, with uPlot.
//
// Knows nothing of jobs or streams, and writes no HTML: text goes in as text. All charts of a page
// share one crosshair and one time axis, and stand still while the pointer is over any of them.

const WINDOW_S = 600;
const SYNC_KEY = "job";
// A live reading that comes later than this after the one before leaves a gap in the line.
const GAP_S = 10;
// Readings that a chart keeps; the older half is thinned out beyond.
const MOST_POINTS = 100_000;
const AXIS_FONT_PX = 11;

/** Every chart of the page. */
const charts = new Set();
const shared = { uPlot: null, loading: null, windowS: WINDOW_S, hovered: 0, frame: 0, unwatch: null };

function load() {
  // The module lies beside this file's `snippets` folder, under the same build.
  shared.loading ??= import(new URL("../../../uPlot.esm.js", import.meta.url).href).then(
    (module) => {
      shared.uPlot = module.default;
      redraw();
    },
    (error) => {
      // Another chart may try again; the figures above the plots work without it.
      shared.loading = null;
      console.error("charts cannot be drawn", error);
    },
  );
}

/** Draws all charts in the next frame; while someone looks at a point, only those not drawn yet. */
function redraw() {
  if (shared.frame !== 0) {
    return;
  }
  shared.frame = requestAnimationFrame(() => {
    shared.frame = 0;
    const range = timeRange();
    for (const chart of charts) {
      if (shared.hovered === 0 || chart.plot === null) {
        chart.draw(range);
      }
    }
  });
}

/** The same for every chart, so that a crosshair means the same moment everywhere. */
function timeRange() {
  let first = Infinity;
  let last = -Infinity;
  for (const { xs } of charts) {
    if (xs.length > 0) {
      first = Math.min(first, xs[0]);
      last = Math.max(last, xs[xs.length - 1]);
    }
  }
  if (last === -Infinity) {
    return null;
  }
  const min = shared.windowS > 0 ? last - shared.windowS : first;
  return { min, max: Math.max(last, min + 1) };
}

/** Draws again when the page changes between light and dark, or to another zone. */
function watchPage() {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const changed = () => {
    for (const chart of charts) {
      chart.readColours();
      chart.say(chart.plot?.cursor.idx ?? null);
    }
    redraw();
  };
  query.addEventListener("change", changed);
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "data-zone"] });
  return () => {
    query.removeEventListener("change", changed);
    observer.disconnect();
  };
}

const two = (number) => String(number).padStart(2, "0");

/** Minutes from UTC at an instant: in the zone of the browser, unless the visitor chose UTC. */
function offsetMinutes(seconds) {
  const utc = document.documentElement.dataset.zone === "utc";
  return utc ? 0 : -new Date(seconds * 1000).getTimezoneOffset();
}

/** A date whose fields in UTC are the wall time of an instant. */
const wall = (seconds) => new Date((seconds + offsetMinutes(seconds) * 60) * 1000);

/** `UTC`, `UTC+1`, `UTC−3:30`: the offset at an instant. */
function zoneLabel(seconds) {
  const offset = offsetMinutes(seconds);
  if (offset === 0) {
    return "UTC";
  }
  const minutes = Math.abs(offset);
  const rest = minutes % 60 === 0 ? "" : `:${two(minutes % 60)}`;
  return `UTC${offset < 0 ? "−" : "+"}${Math.floor(minutes / 60)}${rest}`;
}

function clock(seconds, withSeconds) {
  const time = wall(seconds);
  const minutes = `${two(time.getUTCHours())}:${two(time.getUTCMinutes())}`;
  return withSeconds ? `${minutes}:${two(time.getUTCSeconds())}` : minutes;
}

function day(seconds) {
  const names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const time = wall(seconds);
  return `${time.getUTCDate()} ${names[time.getUTCMonth()]}`;
}

function axisTime(seconds, step) {
  if (step >= 86_400) {
    return day(seconds);
  }
  // The first label of a day says which day it is.
  const midnight = wall(seconds).getTime() % 86_400_000 === 0;
  return midnight && step >= 3_600 ? day(seconds) : clock(seconds, step < 60);
}

function span(className, text) {
  const element = document.createElement("span");
  element.className = className;
  element.textContent = text;
  return element;
}

/** What is not a number was not read, and leaves a gap. */
const reading = (value) => (Number.isFinite(value) ? value : null);

export class LiveChart {
  /**
   * `element` is the whole figure, with `.chart__values`, `.chart__plot` and in it `[data-plot]`.
   * `max` fixes the scale from 0 to it; 0 leaves the scale to the readings.
   */
  constructor(element, title, unit, max) {
    this.element = element;
    this.title = title;
    this.unit = unit;
    this.max = max;
    this.xs = [];
    this.ys = [];
    this.spans = [];
    this.events = [];
    this.pushed = -Infinity;
    this.plot = null;
    this.over = false;
    this.colours = { series: "", grid: "", text: "", event: "", font: "sans-serif" };
    this.values = element.querySelector(".chart__values");
    this.box = element.querySelector(".chart__plot");
    this.place = element.querySelector("[data-plot]") ?? this.box;
    this.observer = new ResizeObserver(() => this.resize());
    this.enter = () => this.hover(true);
    this.leave = () => this.hover(false);
    this.readColours();
    if (this.box !== null) {
      this.observer.observe(this.box);
      this.box.addEventListener("pointerenter", this.enter);
      this.box.addEventListener("pointerleave", this.leave);
      this.box.addEventListener("pointercancel", this.leave);
    }
    charts.add(this);
    shared.unwatch ??= watchPage();
    load();
  }

  /** Replaces what lies between the first and the last of `xs`, and keeps what lies around. */
  set(xs, ys) {
    if (xs.length === 0) {
      return;
    }
    const [first, last] = [xs[0], xs[xs.length - 1]];
    const older = this.xs.findIndex((x) => x >= first);
    const newer = this.xs.findIndex((x) => x > last);
    const before = older < 0 ? this.xs.length : older;
    const after = newer < 0 ? this.xs.length : newer;
    this.ys = [...this.ys.slice(0, before), ...Array.from(ys, reading), ...this.ys.slice(after)];
    this.xs = [...this.xs.slice(0, before), ...xs, ...this.xs.slice(after)];
    this.changed();
  }

  /** Adds the newest reading; an older one is not taken. */
  push(x, y) {
    const last = this.xs.length > 0 ? this.xs[this.xs.length - 1] : -Infinity;
    if (!(x > last)) {
      return;
    }
    if (this.pushed === last && x - last > GAP_S) {
      this.xs.push(last + 1);
      this.ys.push(null);
    }
    this.xs.push(x);
    this.ys.push(reading(y));
    this.pushed = x;
    this.changed();
  }

  /** Shades `spans`, each its begin and its end one after the other, and draws a line at each of `events`. */
  mark(spans, events) {
    this.spans = Array.from(spans);
    this.events = Array.from(events);
    redraw();
  }

  /** How many of the last seconds all charts show; 0 for all there is. */
  window(seconds) {
    shared.windowS = seconds;
    redraw();
  }

  /** The end of the scale, learned later. */
  limit(max) {
    this.max = max;
    redraw();
  }

  destroy() {
    this.hover(false);
    this.observer.disconnect();
    this.box?.removeEventListener("pointerenter", this.enter);
    this.box?.removeEventListener("pointerleave", this.leave);
    this.box?.removeEventListener("pointercancel", this.leave);
    this.plot?.destroy();
    this.plot = null;
    charts.delete(this);
    if (charts.size === 0) {
      shared.unwatch?.();
      shared.unwatch = null;
      shared.windowS = WINDOW_S;
    }
  }

  // What follows is for this module only.

  changed() {
    if (this.xs.length > MOST_POINTS) {
      const half = this.xs.length >> 1;
      const keep = (_, index) => index >= half || index % 2 === 0;
      this.xs = this.xs.filter(keep);
      this.ys = this.ys.filter(keep);
    }
    redraw();
  }

  hover(over) {
    if (this.over === over) {
      return;
    }
    this.over = over;
    shared.hovered += over ? 1 : -1;
    if (shared.hovered === 0) {
      redraw();
    }
  }

  readColours() {
    const style = getComputedStyle(this.element);
    const read = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
    this.colours = {
      series: read("--series", "") || read("--accent", style.color),
      grid: read("--line", style.color),
      text: read("--text-quiet", style.color),
      event: read("--warn", style.color),
      font: style.fontFamily || "sans-serif",
    };
  }

  resize() {
    const width = this.box.clientWidth;
    const height = this.box.clientHeight;
    if (this.plot === null) {
      redraw();
    } else if (width > 0 && height > 0 && (width !== this.plot.width || height !== this.plot.height)) {
      this.plot.setSize({ width, height });
    }
  }

  draw(range) {
    this.say(null);
    if (range === null || shared.uPlot === null || this.box === null || this.xs.length === 0) {
      return;
    }
    if (this.plot === null) {
      const width = this.box.clientWidth;
      const height = this.box.clientHeight;
      if (width === 0 || height === 0) {
        return;
      }
      this.plot = new shared.uPlot(this.options(width, height), [this.xs, this.ys], this.place);
    } else {
      this.plot.setData([this.xs, this.ys], false);
    }
    this.plot.setScale("x", range);
  }

  options(width, height) {
    const axis = {
      stroke: () => this.colours.text,
      font: `${AXIS_FONT_PX}px ${this.colours.font}`,
      grid: { stroke: () => this.colours.grid, width: 1 },
      ticks: { show: false },
      gap: 6,
    };
    return {
      width,
      height,
      // The label at the end of the time axis is centred there, so it needs half of its width beside the plot.
      padding: [8, 26, 0, 0],
      legend: { show: false },
      // Splits of the axis are at full hours and days of the zone.
      tzDate: (seconds) => {
        const date = new Date(seconds * 1000);
        return offsetMinutes(seconds) === 0 ? shared.uPlot.tzDate(date, "Etc/UTC") : date;
      },
      cursor: {
        y: false,
        drag: { x: false, y: false, setScale: false },
        sync: { key: SYNC_KEY, scales: ["x", null] },
        bind: { dblclick: () => null },
        points: { size: 6, width: 0, fill: () => this.colours.series, stroke: () => this.colours.series },
      },
      scales: {
        x: { time: true },
        y: { range: (_, __, max) => this.scale(max) },
      },
      axes: [
        {
          ...axis,
          size: 24,
          space: 72,
          values: (_, splits, __, ___, step) => splits.map((at) => axisTime(at, step)),
        },
        { ...axis, size: 40, space: 40 },
      ],
      series: [
        {},
        {
          stroke: () => this.colours.series,
          width: 1.25,
          spanGaps: false,
          points: { show: () => this.xs.length < 3, size: 5, fill: () => this.colours.series },
        },
      ],
      hooks: {
        drawClear: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.say(plot.cursor.idx)],
      },
    };
  }

  /** Draws the marks below the line. */
  drawMarks({ ctx, bbox, valToPos }) {
    const { left, top, width, height } = bbox;
    const place = (at) => valToPos(at, "x", true);
    ctx.save();
    ctx.globalAlpha = 0.14;
    ctx.fillStyle = this.colours.text;
    for (let n = 0; n + 1 < this.spans.length; n += 2) {
      const begin = Math.max(place(this.spans[n]), left);
      const end = Math.min(place(this.spans[n + 1]), left + width);
      if (end > begin) {
        ctx.fillRect(begin, top, Math.max(end - begin, 1), height);
      }
    }
    ctx.globalAlpha = 1;
    ctx.fillStyle = this.colours.event;
    for (const x of this.events.map(place)) {
      if (x >= left && x <= left + width) {
        ctx.fillRect(x, top, 2, height);
      }
    }
    ctx.restore();
  }

  scale(highest) {
    if (this.max > 0) {
      return [0, this.max];
    }
    return shared.uPlot.rangeNum(0, Math.max(highest ?? 0, 1), 0.1, true);
  }

  /** Writes the line above: the values under the crosshair, or the last ones. */
  say(index) {
    if (this.values === null || this.xs.length === 0) {
      return;
    }
    const at = index ?? this.xs.length - 1;
    const value = this.ys[at] ?? null;
    const digits = this.unit === "GiB" ? 1 : 0;
    const text =
      value === null
        ? "absent"
        : `${value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${this.unit}`;
    const figure = span("chart__value", "");
    figure.append(span("chart__key", ""), text);
    this.values.replaceChildren(span("chart__time", `${clock(this.xs[at], true)} ${zoneLabel(this.xs[at])}`), figure);
  }
}
