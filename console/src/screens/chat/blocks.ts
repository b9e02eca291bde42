/** Markdown that grows: its blocks. Only what follows the last closed block is read again. */
import { Lexer } from "marked";

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
    const tokens = new Lexer({ gfm: true }).blockTokens(text.slice(this.offset)).filter((token) => token.raw !== "");
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
