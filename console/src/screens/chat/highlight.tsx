/** Colours in code: highlight.js as React elements, so that no HTML is set. Loaded with the first code block. */
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import diff from "highlight.js/lib/languages/diff";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import yaml from "highlight.js/lib/languages/yaml";
import type { ReactNode } from "react";

interface Scope {
  scope?: string;
  children: (Scope | string)[];
}

/** Collects what highlight.js finds as a tree, in the place of HTML. */
class TreeEmitter {
  private readonly rootNode: Scope = { children: [] };
  private stack: Scope[] = [this.rootNode];

  constructor(readonly options: unknown) {}

  get root(): Scope {
    return this.rootNode;
  }
  addText(text: string): void {
    if (text !== "") this.top.children.push(text);
  }
  startScope(scope: string): void {
    const node: Scope = { scope, children: [] };
    this.top.children.push(node);
    this.stack.push(node);
  }
  endScope(): void {
    this.stack.pop();
  }
  openNode(scope: string): void {
    this.startScope(scope);
  }
  closeNode(): void {
    this.endScope();
  }
  __addSublanguage(emitter: TreeEmitter): void {
    this.top.children.push(...emitter.root.children);
  }
  finalize(): void {
    this.stack = [this.rootNode];
  }
  toHTML(): string {
    return "";
  }
  private get top(): Scope {
    return this.stack[this.stack.length - 1] ?? this.rootNode;
  }
}

const LANGUAGES = { bash, diff, json, python, sql, typescript, yaml };
const NAMES: Record<string, string> = {
  sh: "bash",
  shell: "bash",
  zsh: "bash",
  console: "bash",
  patch: "diff",
  py: "python",
  ts: "typescript",
  tsx: "typescript",
  js: "typescript",
  jsx: "typescript",
  javascript: "typescript",
  yml: "yaml",
  jsonc: "json",
};
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
hljs.configure({ __emitter: TreeEmitter } as never);

const MAX_LENGTH = 30_000; // characters: longer code has no colours

export function highlight(code: string, language: string): ReactNode {
  const name = NAMES[language] ?? language;
  if (hljs.getLanguage(name) === undefined || code.length > MAX_LENGTH) return code;
  const result = hljs.highlight(code, { language: name, ignoreIllegals: true }) as unknown as { _emitter: TreeEmitter };
  return toElements(result._emitter.root);
}

function toElements(node: Scope): ReactNode[] {
  return node.children.map((child, index) =>
    typeof child === "string" ? (
      child
    ) : (
      <span key={index} className={`hl-${(child.scope ?? "").split(".")[0]}`}>
        {toElements(child)}
      </span>
    ),
  );
}
