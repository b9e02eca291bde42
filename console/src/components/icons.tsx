/** Icons, drawn on 24 × 24. Decorative: the word beside an icon says what it means. */
const PATHS = {
  chat: "M21 12a8 8 0 0 1-11.6 7.1L4 20.5l1.4-5A8 8 0 1 1 21 12z",
  runs: "M4 6h9M4 12h14M4 18h6",
  inbox: "M4 13h4l2 3h4l2-3h4M5 5h14l2 8v6H3v-6z",
  operations: "M14.7 6.3a4 4 0 0 0 5 5L21 13l-8 8-2-2 5-5-6-6-5 5-2-2 8-8z",
  usage: "M4 20V10M10 20V4M16 20v-8M22 20H2",
  key: "M12 15a4 4 0 1 1-8 0 4 4 0 0 1 8 0zM11 12l9-9M16 7l3 3",
  system: "M15 12a3 3 0 1 1-6 0 3 3 0 0 1 6 0zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2",
  team: "M12 8a3 3 0 1 1-6 0 3 3 0 0 1 6 0zM3 20c0-3 3-5 6-5s6 2 6 5M16 5a3 3 0 0 1 0 6M18 15c2 .6 3 2.4 3 5",
  check: "M5 13l4 4L19 7",
  play: "M7 4l12 8-12 8z",
  wait: "M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0zM12 7v5l3 2",
  x: "M6 6l12 12M18 6L6 18",
  search: "M18 11a7 7 0 1 1-14 0 7 7 0 0 1 14 0zM20 20l-4-4",
  stop: "M8 6h8a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2H8a2 2 0 0 1-2-2V8a2 2 0 0 1 2-2z",
  down: "M6 9l6 6 6-6",
  right: "M9 6l6 6-6 6",
  left: "M15 6l-6 6 6 6",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.4 3.4 0 0 1 5 5l-8.6 8.6a1.7 1.7 0 0 1-2.4-2.4L15 7",
  brain: "M9 4a3 3 0 0 0-3 3 3 3 0 0 0-1 5.5 3 3 0 0 0 2 5.5 3 3 0 0 0 5 1V5a3 3 0 0 0-3-1zM15 4a3 3 0 0 1 3 3 3 3 0 0 1 1 5.5 3 3 0 0 1-2 5.5 3 3 0 0 1-5 1",
  plus: "M12 5v14M5 12h14",
  pen: "M4 20h4L19 9l-4-4L4 16z",
  again: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  fork: "M7 5v14M7 9c8 0 10-1 10-4M17 5v0M7 19v0",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  out: "M10 4H5v16h5M15 8l4 4-4 4M19 12H9",
  menu: "M4 7h16M4 12h16M4 17h16",
  sun: "M16 12a4 4 0 1 1-8 0 4 4 0 0 1 8 0zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M19 5l-1.5 1.5M6.500 17.500L5 19",
  moon: "M20 14a8 8 0 1 1-10-10 7 7 0 0 0 10 10z",
  halfmoon: "M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0zM12 3v18",
  help: "M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0zM9.500 9.500a2.500 2.500 0 1 1 3.500 2.300c-.7.400-1 .9-1 1.700M12 17v.01",
  warn: "M12 4l9 16H3zM12 10v4M12 17v.01",
  link: "M14 5h5v5M19 5l-8 8M17 14v5H5V7h5",
  dots: "M5 12v.01M12 12v.01M19 12v.01",
  filter: "M4 5h16l-6 8v6l-4-2v-4z",
  send: "M4 12l16-8-6 16-2.500-6.500z",
  agent: "M5 9h14v10H5zM12 9V5M9 13v2M15 13v2",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg
      className="icon"
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      strokeWidth="2"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
