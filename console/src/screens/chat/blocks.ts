/** Markdown that grows: its blocks. Only what follows the last closed block is read again. */
import { Lexer } from "marked";

const MAX_BLOCK = 20_000; // characters of a block that is read as Markdown: the time grows with their square, at worst
/** Lists and quotations within each other, by their marks or their indentation: each level is a call of the parsers. */
const TOO_DEEP = /^(?:(?:[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])[ \t])){24}|[ \t]{80,}(?:[-*+>]|\d{1,9}[.)]))/m;
const FENCE = /^ {0,3}(?:```|~~~)/;

export class BlockSplitter {
  private closed: string[] = [];
  private offset = 0;
  private text = "";

  /** The blocks of the whole text; those that are closed are the same strings as before. */
  split(text: string): string[] {
    if (!text.startsWith(this.text.slice(0, this.offset))) {
      this.closed = [];
      this.offset = 0;
    }
    this.text = text;
    const tail = text.slice(this.offset);
    if (isTooDeep(tail)) return [...this.closed, tail];
    const tokens = new Lexer({ gfm: true }).blockTokens(tail).filter((token) => token.raw !== "");
    // The last block is open, and a list goes on behind an empty line.
    let open = tokens.length - 1;
    while (open > 0 && tokens[open]?.type === "space") open -= 1;
    for (const token of tokens.slice(0, Math.max(open, 0))) {
      this.offset += token.raw.length;
      if (token.type !== "space") this.closed.push(token.raw);
    }
    const rest = text.slice(this.offset);
    return rest.trim() === "" ? [...this.closed] : [...this.closed, rest];
  }
}

/** Whether a block is shown as it is: the parsers would take seconds for it, or all of the stack. */
export function isPlain(block: string): boolean {
  return isTooDeep(block) || (block.length > MAX_BLOCK && !FENCE.test(block));
}

function isTooDeep(text: string): boolean {
  return TOO_DEEP.test(text) && !FENCE.test(text);
}
