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
      { ...axis, grid: { show: false }, space: 70, size: 28 },
      { ...axis, size: 64, values: (_, values) => values.map((value) => format(value)), space: 44 },
    ],
    series: [
      { label: "time" },
      ...labels.map((label, at) => ({
        label,
        stroke: colour(COLOURS[at % COLOURS.length] ?? "--accent"),
        fill: at === 0 ? colour("--accent-soft", 0.55) : undefined,
        width: at === 0 ? 2 : 1.5,
        points: { show: false },
        spanGaps: true,
        value: (_: uPlot, value: number | null) => format(value),
      })),
    ],
  };
}

/** The colour that a token stands for now: canvases know no custom properties. */
function resolver(element: HTMLElement): (token: string, alpha?: number) => string {
  const probe = document.createElement("span");
  element.append(probe);
  return (token, alpha) => {
    probe.style.color = `var(${token})`;
    const found = getComputedStyle(probe).color;
    queueMicrotask(() => probe.remove());
    return alpha === undefined ? found : found.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
  };
}
