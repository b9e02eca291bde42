/** Rows that came since a list was read: counted above it, and put in when somebody asks for them. */
import { useEffect, useMemo, useState } from "react";
import { Button } from "./basics";

const NOTHING: ReadonlySet<string> = new Set();

interface NewRowCount {
  /** How many of the ids are not among the rows; 0 until there are rows. */
  count: number;
  /** Count these ids, and no longer those that have gone. */
  add: (ids: string[], gone?: string[]) => void;
  clear: () => void;
}

/** Count ids of new rows. `rows` are what is shown, null until it has been read; another `key` is another list. */
export function useNewRows(rows: { id: string }[] | null, key: string): NewRowCount {
  const [ids, setIds] = useState(NOTHING);
  const clear = () => setIds(NOTHING);
  useEffect(clear, [key]);
  const count = useMemo(() => {
    const shown = new Set(rows?.map((row) => row.id));
    return rows === null ? 0 : [...ids].filter((id) => !shown.has(id)).length;
  }, [ids, rows]);
  const add = (more: string[], gone: string[] = []) => {
    if (more.length + gone.length > 0) setIds((now) => new Set([...now, ...more].filter((id) => !gone.includes(id))));
  };
  return { count, add, clear };
}

/** "12 new": rows that came since; they are put in when it is pressed. */
export function NewRows({ count, onShow }: { count: number; onShow: () => void }) {
  if (count === 0) return null;
  return (
    <Button className="new-rows" icon="down" onClick={onShow}>
      {count} new
    </Button>
  );
}
