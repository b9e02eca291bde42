/** The tree of a run with its waterfall: a virtual list of the open rows, one place in the tab order. */
import { useEffect, useMemo, useRef, type KeyboardEvent, type RefObject } from "react";
import { VList, type VListHandle } from "virtua";
import { Icon, Kind, Status, duration, shortCount, spellTurns, useKeys, useTick, type KindName } from "../../components";
import { shortInput, type CallTree, type Filter, type TreeNode } from "./tree";
import { isBad } from "./types";

const ROW = 32;
const PAGE = 15;
const CODE = /^[a-z_]{1,40}$/;
const TICKS = [0, 0.25, 0.5, 0.75];

export function TreeView(props: {
  tree: CallTree;
  version: number;
  filter: Filter;
  selected: string;
  onSelect: (id: string) => void;
  onChange: () => void;
  onDetails: () => void;
  now: number;
}) {
  const { tree, filter, selected, onSelect, onChange } = props;
  const list = useRef<VListHandle>(null);
  const focusNext = useRef(false);
  const running = tree.root.duration === null && tree.root.status === "running";
  useTick(running ? 1_000 : 3_600_000);
  const rows = useMemo(() => tree.rows(filter), [tree, props.version, filter.failed, filter.text]);
  const place = useMemo(() => rows.findIndex((row) => row.id === selected), [rows, selected]);
  const at = Math.max(0, place);
  const current = rows[at] ?? tree.root;
  const origin = tree.root.startedAt;
  const end = running ? Math.max(tree.end, Date.now() / 1000 + props.now) : tree.end;
  const span = Math.max(end - origin, 0.001);

  const select = (node: TreeNode | undefined) => {
    if (node === undefined) return;
    focusNext.current = true;
    onSelect(node.id);
  };
  const toggle = (node: TreeNode, open: boolean) => {
    tree.setOpen(node, open);
    onChange();
  };
  const nextError = (step: 1 | -1) => {
    if (tree.failed.length === 0) return;
    const here = tree.failed.findIndex((node) => node.id === selected);
    const to = tree.failed[(here + step + tree.failed.length) % tree.failed.length] ?? tree.failed[0]!;
    tree.reveal(to);
    onChange();
    focusNext.current = true;
    onSelect(to.id);
  };
  const collapseSiblings = (open: boolean) => {
    for (const node of current.parent?.children ?? [current]) tree.setOpen(node, open);
    onChange();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: PAGE, PageUp: -PAGE }[event.key];
    if (event.altKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) collapseSiblings(event.key === "ArrowRight");
    else if (move !== undefined) select(rows[Math.max(0, Math.min(rows.length - 1, at + move))]);
    else if (event.key === "Home") select(rows[0]);
    else if (event.key === "End") select(rows[rows.length - 1]);
    else if (event.key === "ArrowRight") {
      if (current.children.length > 0 && !tree.isOpen(current)) toggle(current, true);
      else select(current.children[0]);
    } else if (event.key === "ArrowLeft") {
      if (current.children.length > 0 && tree.isOpen(current)) toggle(current, false);
      else if (current.parent !== null) select(current.parent);
    } else return;
    event.preventDefault();
  };

  const levels = Object.fromEntries(
    [1, 2, 3, 4, 5, 6, 7, 8, 9].map((level) => [
      String(level),
      [`expand ${level} level${level > 1 ? "s" : ""}`, () => (tree.openTo(level), onChange())],
    ]),
  ) as Record<string, [string, () => void]>;
  useKeys("Run", {
    j: ["next call", () => select(rows[at + 1])],
    k: ["previous call", () => select(rows[at - 1])],
    Enter: ["details", props.onDetails],
    ".": ["next error", () => nextError(1)],
    ",": ["previous error", () => nextError(-1)],
    ...levels,
    "0": ["expand everything", () => (tree.openTo(Number.POSITIVE_INFINITY), onChange())],
    "alt+→": ["expand siblings (Alt+←: collapse)", () => collapseSiblings(true)],
  });

  // What is selected by an address, a key or an error comes into view; its row takes the focus if a key asked for it.
  useEffect(() => {
    if (place >= 0) list.current?.scrollToIndex(place, { align: "nearest" });
  }, [selected, place]);
  const kept = useMemo(() => [at], [at]); // the row with the focus stays, however far somebody scrolls

  return (
    <div className="runs-tree">
      <div className="runs-row runs-axis" aria-hidden="true">
        <div className="runs-name">Call</div>
        <div className="runs-track">
          {TICKS.map((tick) => (
            <span key={tick} style={{ left: `${tick * 100}%` }}>
              {tick === 0 ? "0 s" : duration(span * tick)}
            </span>
          ))}
        </div>
        <div className="runs-time">Duration</div>
      </div>
      <VList
        ref={list}
        className="runs-rows"
        role="tree"
        aria-label="Calls"
        data={rows}
        itemSize={ROW}
        keepMounted={kept}
        onKeyDown={onKeyDown}
      >
        {(node) => (
          <Row
            key={node.id}
            node={node}
            isRoot={node === tree.root}
            open={node.children.length === 0 ? undefined : tree.isOpen(node) || filter.failed || filter.text !== ""}
            selected={node === current}
            focusNext={focusNext}
            left={((node.startedAt - origin) / span) * 100}
            width={(((node.duration ?? (node.status === "running" || node.status === "pending" ? end - node.startedAt : 0)) as number) / span) * 100}
            onSelect={() => {
              focusNext.current = true;
              onSelect(node.id);
            }}
            onDetails={props.onDetails}
            onToggle={(open) => toggle(node, open)}
          />
        )}
      </VList>
    </div>
  );
}

function Row(props: {
  node: TreeNode;
  isRoot: boolean;
  open: boolean | undefined;
  selected: boolean;
  /** Whether the selected row takes the focus. */
  focusNext: RefObject<boolean>;
  left: number;
  width: number;
  onSelect: () => void;
  onDetails: () => void;
  onToggle: (open: boolean) => void;
}) {
  const { node, open, selected, focusNext } = props;
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let frame = 0;
    const take = () => {
      if (!selected || !focusNext.current) return;
      element.current?.focus({ preventScroll: true });
      if (document.activeElement === element.current) focusNext.current = false;
      else frame = requestAnimationFrame(take); // the list hides a row until it has measured it
    };
    take();
    return () => cancelAnimationFrame(frame);
  });
  const waits = node.status === "pending";
  const look = isBad(node.status) ? "bad" : waits ? "wait" : kindOf(node);
  return (
    <div
      ref={element}
      id={`node-${node.id}`}
      className="runs-row"
      role="treeitem"
      aria-level={node.level}
      aria-setsize={node.parent?.children.length ?? 1}
      aria-posinset={node.position}
      aria-expanded={open}
      aria-selected={props.selected}
      tabIndex={props.selected ? 0 : -1}
      onClick={props.onSelect}
      onDoubleClick={() => open !== undefined && props.onToggle(!open)}
    >
      <div className="runs-name" style={{ paddingLeft: `calc(var(--runs-indent) * ${Math.min(node.level - 1, 12)})` }}>
        <span
          className="runs-twist"
          aria-hidden="true"
          onClick={(event) => {
            event.stopPropagation();
            if (open !== undefined) props.onToggle(!open);
          }}
        >
          {open !== undefined && <Icon name={open ? "down" : "right"} size={12} />}
        </span>
        {!props.isRoot && <Kind kind={kindOf(node)}>{kindWord(node)}</Kind>}
        <b>{spellTurns(title(node))}</b>
        <span className="runs-detail">{spellTurns(describe(node))}</span>
        {node.status !== "done" && !(props.isRoot && node.status === "done") && (
          <Status status={waits ? "waiting" : node.status} word={isBad(node.status) && !props.isRoot ? shortCode(node) : undefined} />
        )}
      </div>
      <div className="runs-track" aria-hidden="true">
        <div className={`runs-bar runs-bar-${look}`} style={{ left: `${clamp(props.left)}%`, width: `${clamp(props.width, props.left)}%` }} />
      </div>
      <div className="runs-time num">{node.duration === null ? "" : duration(node.duration)}</div>
    </div>
  );
}

function clamp(value: number, left = 0): number {
  return Math.max(0, Math.min(100 - left, value));
}

export function kindOf(node: { kind: string; name: string }): KindName {
  if (node.kind === "model" || node.kind === "run") return "model";
  return node.kind === "task" || node.name.startsWith("agents.") ? "tool" : "op";
}

function title(node: TreeNode): string {
  if (node.kind === "run" && node.parent === null) return `run ${node.name}`;
  return node.kind === "model" && node.step !== null ? `step ${node.step}` : node.name;
}

function kindWord(node: TreeNode): string {
  if (node.kind !== "call") return node.kind;
  return node.name.startsWith("agents.") ? "agent" : "op";
}

/** `call_timeout` is the kind of failure; a denied or uncertain call says so itself. */
function shortCode(node: TreeNode): string | undefined {
  if (node.status !== "failed") return undefined;
  if (node.error === null || !CODE.test(node.error)) return undefined; // a sentence is in the details
  return node.error.replace(/^call_/, "").replaceAll("_", " ");
}

function describe(node: TreeNode): string {
  if (node.kind === "model") {
    const model = node.step === null || node.id.startsWith("step:") ? "" : (node.name.split("/").pop() ?? "");
    const tokens =
      node.inputTokens === null ? "" : `${shortCount(node.inputTokens)} in · ${shortCount(node.outputTokens)} out`;
    return [model, tokens].filter(Boolean).join(" · ");
  }
  const attempts = node.attempts !== null && node.attempts > 1 ? `${node.attempts} attempts` : "";
  return [shortInput(node.detail), attempts].filter(Boolean).join(" · ");
}
