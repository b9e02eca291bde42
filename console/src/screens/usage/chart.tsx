/** A chart over time on a canvas (uPlot, loaded when a chart is shown), with its numbers as a table beneath. */
import { useEffect, useMemo, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Line } from "./measures";

const COLOURS = ["--accent", "--model", "--op", "--run", "--wait", "--ink2"];
const HEIGHT = 220;

export default function Chart(props: { times: number[]; lines: Line[]; format: (value: number | null) => string; label: string }) {
  const { times, lines, format, label } = props;
  const place = useRef<HTMLDivElement>(null);
  const key = lines.map((line) => line.label).join("\n");
  const data = useMemo(() => [times, ...lines.map((line) => line.values)] as uPlot.AlignedData, [times, lines]);
  const chart = useRef<uPlot | null>(null);
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const draw = () => {
      chart.current?.destroy();
      chart.current = new uPlot(options(element, key.split("\n"), format), latest.current, element);
    };
    draw();
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    const theme = new MutationObserver(draw);
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    const scheme = window.matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      resized.disconnect();
      theme.disconnect();
      scheme.removeEventListener("change", draw);
      chart.current?.destroy();
      chart.current = null;
    };
  }, [key, format]);
  useEffect(() => chart.current?.setData(data), [data]);
  return <div className="usage-chart" ref={place} role="img" aria-label={label} />;
}

function options(element: HTMLElement, labels: string[], format: (value: number | null) => string): uPlot.Options {
  const colour = resolver(element);
  const ink = colour("--ink3");
  const line = colour("--line");
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    cursor: { points: { size: 7 }, drag: { x: false, y: false } },
    legend: { live: true },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high === null || high <= 0 ? 1 : high * 1.08] } },
    axes: [
      { ...axis, grid: { show: false }, space: 80, size: 28, values: (_, times, __, ___, step) => times.map((time) => shortTime(time, step)) },
      { ...axis, size: 64, values: (_, values) => values.map((value) => shorten(format(value))), space: 32 },
    ],
    series: [
      { label: "time", value: (_, time) => (time === null ? "–" : new Date(time * 1000).toLocaleString()) },
      ...labels.map((label, at) => ({
        label,
        stroke: colour(COLOURS[at % COLOURS.length] ?? "--accent"),
        fill: at === 0 ? colour("--accent-soft") : undefined,
        width: at === 0 ? 2 : 1.5,
        points: { show: false },
        spanGaps: true,
        value: (_: uPlot, value: number | null) => format(value),
      })),
    ],
  };
}

/** `$0.05`, not `$0.0500`: the numbers of an axis are round. */
function shorten(text: string): string {
  return text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}

/** The hour, or the day at its beginning. */
function shortTime(time: number, step: number): string {
  const date = new Date(time * 1000);
  const isMidnight = date.getHours() === 0 && date.getMinutes() === 0;
  if (step < 86_400 && !isMidnight) return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
  return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
}

/** The colour that a token stands for now: canvases know no custom properties. */
function resolver(element: HTMLElement): (token: string) => string {
  return (token) => {
    const probe = document.createElement("span"); // a new one: the colour of an old one may be in transition
    probe.style.color = `var(${token})`;
    element.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
}
