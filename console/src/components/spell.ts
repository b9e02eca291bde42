/** Spelling characters that would make a text look like another one: nobody approves or opens something else than they read. */

/** What draws nothing, turns the direction of a text or looks like a space. Pictures keep their selector: "❤️". */
const UNSEEN = /(?![ \n\t]|(?<=\p{Extended_Pictographic})\ufe0f)[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;
const WORD = /[\p{L}\p{M}]+/gu;
const LATIN = /\p{Script=Latin}/u;
const LOOKALIKE = /[\p{Script=Cyrillic}\p{Script=Greek}\p{Script=Armenian}\p{Script=Cherokee}]/gu;

/**
 * Characters that cannot be seen are spelt, and letters of scripts that look like Latin in words that have Latin
 * letters as well: nobody approves something other than what they read.
 */
export function spell(text: string): string {
  return text
    .replace(WORD, (word) => (LATIN.test(word) ? word.replace(LOOKALIKE, escape) : word))
    .replace(UNSEEN, escape);
}

function escape(sign: string): string {
  const code = sign.codePointAt(0)!.toString(16).padStart(4, "0");
  return code.length > 4 ? `\\u{${code}}` : `\\u${code}`;
}

/** Signs that turn the direction of what follows, until another one ends it. */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

/**
 * A name or title as lists show it: a sign that turns the direction is spelt, and so moves nothing beside it and hides
 * nothing. Letters of all scripts stay as they are, and so does what joins them. What is no text is returned as it is.
 */
export function spellTurns<T>(text: T): T {
  return typeof text === "string" ? (text.replace(TURNS, escape) as T) : text;
}
