/**
 * A list of rows: drawn only where it is looked at, moved through with `j` `k` or arrows, opened with Enter.
 *
 * It is a grid for screen readers, since the DOM holds the visible rows only. What is under the cursor does not
 * move by itself: a screen that has newer rows shows `NewRows` above, and puts them in when it is pressed.
 */
import { useEffect, useRef, useState, type ReactNode } from "react";
import { VList, type VListHandle } from "virtua";
import { useKeys } from "./keys";
import { spellTurns } from "./spell";

export interface Column<Row> {
  id: string;
  title: ReactNode;
  /** A CSS grid width: `"1fr"`, `"80px"`, `"minmax(120px, 2fr)"`. */
  width: string;
  cell: (row: Row) => ReactNode;
  /** Numbers are aligned right. */
  numeric?: boolean;
  /** Left out on narrow screens; `extra`: on tablets as well; `full`: on small laptops too; `huge`: on all but the widest. */
  wide?: boolean | "extra" | "full" | "huge";
}

export interface TableProps<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  rowId: (row: Row) => string;
  selected?: string | null;
  onSelect?: (row: Row) => void;
  onOpen?: (row: Row) => void;
  /** Called when the end is near: load the next page. */
  onEnd?: () => void;
  rowHeight?: number;
  /** What to show without rows. */
  empty?: ReactNode;
}

const END_ROWS = 20;

/** Where the cursor was in each list: who comes back from a row goes on from there. */
const cursors = new Map<string, string>();

export function Table<Row>(props: TableProps<Row>) {
  const { rows, rowId, rowHeight = 38, onSelect, onOpen, onEnd } = props;
  const list = useRef<VListHandle>(null);
  const grid = useRef<HTMLDivElement>(null);
  const narrow = useNarrow();
  const medium = useMedia(MEDIUM);
  const small = useMedia(SMALL);
  const [cursor, setCursor] = useState<string | null>(props.selected ?? cursors.get(props.label) ?? null);
  useEffect(() => void (cursor !== null && cursors.set(props.label, cursor)), [cursor]);
  const selected = props.selected !== undefined ? props.selected : cursor;
  const at = rows.findIndex((row) => rowId(row) === selected);
  const huge = useHuge();
  const columns = props.columns.filter(
    ({ wide }) => !(narrow && wide === true) && !(medium && wide === "extra") && !(small && wide === "full") && (huge || wide !== "huge"),
  );
  const template = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };

  // What an address selects is in sight when the list appears; later the list scrolls only by the reader's keys.
  const isThere = rows.length > 0;
  useEffect(() => {
    if (at > 0) list.current?.scrollToIndex(at, { align: "nearest" });
  }, [isThere]);

  const move = (to: number) => {
    const row = rows[Math.max(0, Math.min(rows.length - 1, to))];
    if (row === undefined) return;
    grid.current?.focus({ preventScroll: true }); // a row that has the focus may leave the page
    setCursor(rowId(row));
    onSelect?.(row);
    list.current?.scrollToIndex(rows.indexOf(row), { align: "nearest" });
  };
  const open = () => {
    const row = rows[at];
    if (row !== undefined) (onOpen ?? onSelect)?.(row);
  };
  useKeys("Lists", {
    j: ["next row", () => move(at + 1)],
    k: ["previous row", () => move(at < 0 ? 0 : at - 1)],
    Enter: ["open the row", open],
    G: ["last row", () => move(rows.length - 1)],
  });
  const isAtEnd = useRef(false);
  const onScroll = () => {
    if (onEnd === undefined || list.current === null) return;
    const last = list.current.findItemIndex(list.current.scrollOffset + list.current.viewportSize);
    isAtEnd.current = last >= rows.length - END_ROWS;
    if (isAtEnd.current) onEnd();
  };
  // While the rows are read anew no page is loaded behind them: it is once they are there.
  useEffect(() => {
    if (isAtEnd.current) onScroll();
  });
  if (rows.length === 0) return <>{props.empty ?? null}</>;
  return (
    <div
      ref={grid}
      className="table"
      role="grid"
      aria-label={props.label}
      aria-rowcount={rows.length + 1}
      tabIndex={0}
      aria-activedescendant={at >= 0 ? `row-${selected}` : undefined}
      onKeyDown={(event) => {
        const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
        const isRow = event.target instanceof HTMLElement && event.target.getAttribute("role") === "row";
        if (step === undefined || (event.target !== event.currentTarget && !isRow)) return;
        event.preventDefault();
        move(at + step);
      }}
    >
      <div role="rowgroup">
        <div className="table-head" role="row" style={template}>
          {columns.map((column) => (
            <span key={column.id} role="columnheader" className={column.numeric === true ? "num right" : ""}>
              {column.title}
            </span>
          ))}
        </div>
      </div>
      <VList ref={list} role="rowgroup" className="table-rows" itemSize={rowHeight} data={rows} onScroll={onScroll}>
        {(row, index) => (
          <div
            key={rowId(row)}
            id={`row-${rowId(row)}`}
            role="row"
            aria-rowindex={index + 2}
            aria-selected={rowId(row) === selected}
            tabIndex={rowId(row) === selected || (at < 0 && index === 0) ? 0 : undefined}
            className="table-row"
            style={{ ...template, height: rowHeight }}
            onFocus={(event) => event.target === event.currentTarget && setCursor(rowId(row))}
            onClick={() => {
              setCursor(rowId(row));
              onSelect?.(row);
              onOpen?.(row);
            }}
          >
            {columns.map((column) => (
              <span key={column.id} role="gridcell" className={column.numeric === true ? "num right" : ""}>
                {spellTurns(column.cell(row))}
              </span>
            ))}
          </div>
        )}
      </VList>
    </div>
  );
}

const NARROW = window.matchMedia("(max-width: 720px)");
const MEDIUM = window.matchMedia("(max-width: 1099px)");
const SMALL = window.matchMedia("(max-width: 1339px)");
const HUGE = window.matchMedia("(min-width: 2000px)");

/** Whether the window is a telephone's. */
export function useNarrow(): boolean {
  return useMedia(NARROW);
}

/** Whether the window is wider than a tablet's. */
export function useWide(): boolean {
  return !useMedia(MEDIUM);
}

/** Whether the window has room for what others open. */
export function useHuge(): boolean {
  return useMedia(HUGE);
}

function useMedia(query: MediaQueryList): boolean {
  const [matches, setMatches] = useState(query.matches);
  useEffect(() => {
    const update = () => setMatches(query.matches);
    query.addEventListener("change", update);
    return () => query.removeEventListener("change", update);
  }, [query]);
  return matches;
}
