/**
 * The nodes of a call tree, hundreds of thousands of them: rows as the hub sends them, made into a tree in one pass, and
 * into a flat list of the rows that are open. Nothing here is done for each row that is drawn.
 */
import { spell } from "../../components";
import { isBad, type Root } from "./types";

export interface TreeNode {
  id: string;
  parentId: string | null;
  kind: "run" | "model" | "call" | "task";
  name: string;
  status: string;
  startedAt: number;
  duration: number | null;
  step: number | null;
  detail: string | null;
  error: string | null;
  effect: string | null;
  attempts: number | null;
  cost: number | null;
  inputTokens: number | null;
  outputTokens: number | null;
  firstByte: number | null;
  parent: TreeNode | null;
  children: TreeNode[];
  level: number;
  position: number;
}

export interface Filter {
  failed: boolean;
  text: string;
}

type Row = unknown[];

const SMALL = 2_000; // nodes of a tree that is shown open

export class CallTree {
  private readonly nodes = new Map<string, TreeNode>();
  private places: Partial<Record<string, number>> = {};
  /** Step nodes that stand for model calls which are not recorded yet. */
  private steps: TreeNode[] = [];
  private overrides = new Map<string, boolean>();
  private openLevel = Number.POSITIVE_INFINITY;
  private chosenLevel = false;
  root: TreeNode;
  /** Failed nodes in the order of the tree. */
  failed: TreeNode[] = [];
  end = 0;
  version = 0;

  constructor(root: Root) {
    this.root = rootNode(root);
    this.nodes.set(root.id, this.root);
  }

  get size(): number {
    return this.nodes.size;
  }

  setHead(root: Root, fields: string[]): void {
    this.places = Object.fromEntries(fields.map((name, at) => [name, at]));
    Object.assign(this.root, { status: root.status, duration: root.duration, error: root.error, cost: root.cost });
  }

  get(id: string): TreeNode | undefined {
    return this.nodes.get(id);
  }

  /** Insert rows as the hub sends them: nodes of one shape, since there are very many. Those without a parent are below `under`. */
  add(rows: Row[], under: string | null = null): void {
    const { places } = this;
    const read = (row: Row, name: keyof TreeNode) => row[places[name] ?? -1] ?? null;
    for (const row of rows) {
      const node = {
        id: read(row, "id"),
        parentId: read(row, "parentId") ?? under,
        kind: read(row, "kind"),
        name: read(row, "name"),
        status: read(row, "status"),
        startedAt: read(row, "startedAt"),
        duration: read(row, "duration"),
        step: read(row, "step"),
        detail: read(row, "detail"),
        error: read(row, "error"),
        effect: read(row, "effect"),
        attempts: read(row, "attempts"),
        cost: read(row, "cost"),
        inputTokens: read(row, "inputTokens"),
        outputTokens: read(row, "outputTokens"),
        firstByte: read(row, "firstByte"),
        parent: null,
        children: NONE,
        level: 1,
        position: 1,
      } as TreeNode;
      if (this.nodes.has(node.id)) {
        const { parent, children, level, position, ...fields } = node;
        this.put(fields);
      } else this.nodes.set(node.id, node);
    }
  }

  /** Insert a node, or change the one of its id. */
  put(fields: Partial<TreeNode> & { id: string }): void {
    const found = this.nodes.get(fields.id);
    if (found !== undefined) {
      const { kind, parentId, name, ...changes } = fields;
      Object.assign(found, found === this.root ? { ...changes, startedAt: found.startedAt } : changes);
      if (found === this.root) return;
      if (kind !== undefined) Object.assign(found, { kind, parentId: parentId ?? found.parentId, name: name ?? found.name });
      return;
    }
    this.nodes.set(fields.id, { ...EMPTY, ...fields });
  }

  /** Find each node's parent and order its children: once for a batch of nodes, not for each. */
  build(): void {
    for (const step of this.steps) this.nodes.delete(step.id);
    this.steps = [];
    const groups: Groups = new Map();
    this.end = this.root.startedAt;
    for (const node of this.nodes.values()) {
      node.children = NONE;
      node.parent = null;
      const nodeEnd = node.startedAt + (node.duration ?? 0);
      if (nodeEnd > this.end) this.end = nodeEnd;
      if (node.kind !== "model" || node.step === null) continue;
      const parent = this.directParent(node);
      const earlier = groups.get(parent)?.get(node.step);
      if (earlier === undefined || byStart(earlier, node) < 0) putStep(groups, parent, node.step, node);
    }
    for (const node of this.nodes.values()) {
      if (node === this.root) continue;
      node.parent = this.parentOf(node, groups);
      if (node.parent.children === NONE) node.parent.children = [node];
      else node.parent.children.push(node);
    }
    for (const step of this.steps) this.nodes.set(step.id, step);
    const counts = this.order();
    if (!this.chosenLevel) this.openLevel = levelToOpen(counts, this.nodes.size);
    this.version += 1;
  }

  private directParent(node: TreeNode): TreeNode {
    return (node.parentId === null ? undefined : this.nodes.get(node.parentId)) ?? this.root;
  }

  private parentOf(node: TreeNode, groups: Groups): TreeNode {
    const direct = this.directParent(node);
    if (node.kind === "model" || node.step === null || node.step === 0) return direct;
    const model = groups.get(direct)?.get(node.step);
    if (model !== undefined) return model;
    if (direct !== this.root || this.root.kind !== "run") return direct;
    // A step whose model call is not recorded yet.
    const step: TreeNode = {
      ...EMPTY,
      id: `step:${node.step}`,
      kind: "model",
      name: `step ${node.step}`,
      status: "done",
      startedAt: node.startedAt,
      step: node.step,
      parent: direct,
    };
    putStep(groups, direct, node.step, step);
    this.steps.push(step);
    if (direct.children === NONE) direct.children = [step];
    else direct.children.push(step);
    return step;
  }

  /** Give each node its level and its place among its siblings; return how many nodes each level has. */
  private order(): number[] {
    const counts: number[] = [0, 0];
    this.failed = [];
    const stack: TreeNode[] = [this.root];
    this.root.level = 1;
    this.root.position = 1;
    while (stack.length > 0) {
      const node = stack.pop()!;
      counts[node.level] = (counts[node.level] ?? 0) + 1;
      if (isBad(node.status) && node !== this.root) this.failed.push(node);
      const { children } = node;
      if (!isSorted(children)) children.sort(byStart);
      for (let at = children.length - 1; at >= 0; at--) {
        const child = children[at]!;
        child.level = node.level + 1;
        child.position = at + 1;
        stack.push(child);
      }
    }
    return counts;
  }

  isOpen(node: TreeNode): boolean {
    return this.overrides.get(node.id) ?? node.level < this.openLevel;
  }

  setOpen(node: TreeNode, open: boolean): void {
    this.overrides.set(node.id, open);
  }

  /** Open all nodes above this level, and close those below. */
  openTo(level: number): void {
    this.overrides.clear();
    this.chosenLevel = true;
    this.openLevel = level;
  }

  /** Make a node visible. */
  reveal(node: TreeNode): void {
    for (let above = node.parent; above !== null; above = above.parent) {
      if (!this.isOpen(above)) this.overrides.set(above.id, true);
    }
  }

  /** The rows to show, from top to bottom. */
  rows(filter: Filter): TreeNode[] {
    const shown = this.matching(filter);
    const rows: TreeNode[] = [];
    const stack: TreeNode[] = [this.root];
    while (stack.length > 0) {
      const node = stack.pop()!;
      if (shown !== null && !shown.has(node)) continue;
      rows.push(node);
      if (shown === null && !this.isOpen(node)) continue;
      for (let at = node.children.length - 1; at >= 0; at--) stack.push(node.children[at]!);
    }
    return rows;
  }

  /** What fits the filter, with all that is above; null without a filter. */
  private matching(filter: Filter): Set<TreeNode> | null {
    const text = filter.text.trim().toLowerCase();
    if (!filter.failed && text === "") return null;
    const found = new Set<TreeNode>([this.root]);
    for (const node of this.nodes.values()) {
      if (filter.failed && !isBad(node.status)) continue;
      if (text !== "" && !`${node.name} ${node.detail ?? ""} ${node.error ?? ""} ${node.id}`.toLowerCase().includes(text)) continue;
      for (let at: TreeNode | null = node; at !== null && !found.has(at); at = at.parent) found.add(at);
    }
    return found;
  }

  /** Everything in the order in which it began and ended. */
  moments(): { at: number; node: TreeNode; what: "began" | "ended" }[] {
    const found: { at: number; node: TreeNode; what: "began" | "ended" }[] = [];
    for (const node of this.nodes.values()) {
      if (node.id.startsWith("step:")) continue;
      found.push({ at: node.startedAt, node, what: "began" });
      if (node.duration !== null) found.push({ at: node.startedAt + node.duration, node, what: "ended" });
    }
    return found.sort((a, b) => a.at - b.at);
  }
}

/** The children of a node that has none: shared, never changed. */
const NONE: TreeNode[] = [];
Object.freeze(NONE);

type Groups = Map<TreeNode, Map<number, TreeNode>>;

function putStep(groups: Groups, parent: TreeNode, step: number, node: TreeNode): void {
  const found = groups.get(parent);
  if (found === undefined) groups.set(parent, new Map([[step, node]]));
  else found.set(step, node);
}

/** As many levels as have at most SMALL nodes together. */
function levelToOpen(counts: number[], size: number): number {
  if (size <= SMALL) return Number.POSITIVE_INFINITY;
  let level = 1;
  for (let shown = counts[1] ?? 0; level < counts.length - 1; level++) {
    shown += counts[level + 1] ?? 0;
    if (shown > SMALL) break;
  }
  return Math.max(2, level);
}

const EMPTY: TreeNode = {
  id: "",
  parentId: null,
  kind: "call",
  name: "",
  status: "running",
  startedAt: 0,
  duration: null,
  step: null,
  detail: null,
  error: null,
  effect: null,
  attempts: null,
  cost: null,
  inputTokens: null,
  outputTokens: null,
  firstByte: null,
  parent: null,
  children: NONE,
  level: 1,
  position: 1,
};

function rootNode(root: Root): TreeNode {
  const { id, kind, name, status, startedAt, duration, error, effect, cost } = root;
  return { ...EMPTY, id, kind, name, status, startedAt, duration, error, effect, cost };
}

function isSorted(nodes: TreeNode[]): boolean {
  for (let at = 1; at < nodes.length; at++) if (byStart(nodes[at - 1]!, nodes[at]!) > 0) return false;
  return true;
}

function byStart(a: TreeNode, b: TreeNode): number {
  return a.startedAt - b.startedAt || (a.id < b.id ? -1 : 1);
}

/** `{"id":4411,"a":"x"}` as `id=4411 a=x`: what fits beside a name. */
export function shortInput(text: string | null): string {
  if (text === null) return "";
  const end = text.startsWith("{") && !text.endsWith("}") ? "…" : ""; // the hub sends its beginning
  return spell(text + end)
    .replace(/^\{|\}$/g, "")
    .replace(/"([\w-]+)":/g, "$1=")
    .replace(/"/g, "")
    .replace(/,(?=[\w-]+=)/g, " ");
}
