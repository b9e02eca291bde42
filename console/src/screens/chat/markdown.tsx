/** Markdown of an answer: a block at a time, so that what is finished is not rendered again while it grows. */
import { memo, useEffect, useRef, useState, type ReactNode } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { Button, copyText, loadModule } from "../../components";
import { BlockSplitter, isPlain } from "./blocks";

const PLUGINS = [remarkGfm];

export function Markdown({ text }: { text: string }) {
  const splitter = useRef<BlockSplitter | null>(null);
  splitter.current ??= new BlockSplitter();
  return (
    <div className="chat-md">
      {splitter.current.split(text).map((block, index) => (
        <Block key={index} text={block} />
      ))}
    </div>
  );
}

const Block = memo(function Block({ text }: { text: string }) {
  if (isPlain(text)) {
    return (
      <div className="chat-plain" tabIndex={0} role="group" aria-label="Plain text">
        {text}
      </div>
    );
  }
  return (
    <ReactMarkdown remarkPlugins={PLUGINS} components={COMPONENTS}>
      {text}
    </ReactMarkdown>
  );
});

type Highlight = (code: string, language: string) => ReactNode;
let highlighter: Highlight | null = null;
let loading: Promise<void> | null = null;

/** Code with its language, a button that copies it, and colours once they are loaded. */
function Code({ code, language }: { code: string; language: string }) {
  const [, setLoaded] = useState(highlighter !== null);
  useEffect(() => {
    if (highlighter !== null || language === "") return;
    const failed = () => void (loading = null); // without colours; the next code tries it again
    loading ??= loadModule(() => import("./highlight"), "highlight").then(({ highlight }) => void (highlighter = highlight), failed);
    void loading.then(() => setLoaded(highlighter !== null));
  }, [language]);
  return (
    <div className="chat-code">
      <div className="chat-code-head">
        <span>{language === "" ? "text" : language}</span>
        <Button look="quiet" icon="copy" aria-label="Copy code" onClick={() => void copyText(code)} />
      </div>
      <pre tabIndex={0}>
        <code>{highlighter === null ? code : highlighter(code, language)}</code>
      </pre>
    </div>
  );
}

const COMPONENTS: Components = {
  // An address that is not of the web or of mail, such as `javascript:`, is empty here.
  a: ({ href, children }) =>
    href === undefined || href === "" ? (
      <span title="The address of this link is not shown: it is not of the web.">{children}</span>
    ) : (
      <a href={href} target="_blank" rel="noopener noreferrer">
        {children}
      </a>
    ),
  // A model can send data out through the address of an image, so images of other hosts are links.
  img: ({ src, alt }) => {
    const label = `image: ${alt === undefined || alt === "" ? "no description" : alt}`;
    if (typeof src !== "string" || src === "") return <span className="chat-image-link">{label}</span>;
    return (
      <a href={src} target="_blank" rel="noopener noreferrer" className="chat-image-link">
        {label}
      </a>
    );
  },
  pre: ({ node }) => {
    const code = node?.children[0];
    if (code === undefined || code.type !== "element") return null;
    const names = code.properties["className"];
    const language = Array.isArray(names) ? String(names[0]).replace("language-", "") : "";
    const first = code.children[0];
    return <Code code={first?.type === "text" ? first.value.replace(/\n$/, "") : ""} language={language} />;
  },
  // Marks, bars and columns stand on the side where the text begins.
  ol: ({ children, start, className }) => (
    <ol dir="auto" start={start} className={className}>
      {children}
    </ol>
  ),
  ul: ({ children, className }) => (
    <ul dir="auto" className={className}>
      {children}
    </ul>
  ),
  blockquote: ({ children }) => <blockquote dir="auto">{children}</blockquote>,
  table: ({ children }) => (
    <div className="chat-table" tabIndex={0} role="group" aria-label="Table">
      <table dir="auto">{children}</table>
    </div>
  ),
  input: ({ checked }) => <input type="checkbox" checked={checked} disabled aria-label={checked === true ? "done" : "to do"} />,
  // The headings of an answer are below those of the screen.
  h1: ({ children }) => <h2>{children}</h2>,
  h2: ({ children }) => <h3>{children}</h3>,
  h3: ({ children }) => <h4>{children}</h4>,
  h4: ({ children }) => <h5>{children}</h5>,
};
