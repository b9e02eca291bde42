/** The hub's clock: times and expiries are the hub's, and this machine's clock may be hours off. */
const TOLERANCE = 5; // seconds: the header has whole ones, and an answer takes its time

let skew: number | null = null;

/** Take the `date` header of the first answer. */
export function noteDate(header: string | null): void {
  const at = header === null ? NaN : Date.parse(header) / 1000;
  if (skew !== null || Number.isNaN(at)) return;
  const found = at - Date.now() / 1000;
  skew = Math.abs(found) > TOLERANCE ? found : 0;
}

/** The unix time at the hub, in seconds. */
export function hubTime(): number {
  return Date.now() / 1000 + (skew ?? 0);
}
