/** A diff in lines, as the hub tells it: `-` was, `+` is. */
export function DiffView({ diff, label }: { diff: string; label: string }) {
  const lines = diff.split("\n").filter((line) => !/^(---|\+\+\+) /.test(line));
  return (
    <div className="operations-diff" tabIndex={0} role="region" aria-label={label}>
      {lines.map((line, at) => {
        const kind = line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : line.startsWith("@@") ? "place" : "same";
        return (
          <div key={at} className={`operations-diff-${kind}`}>
            {line === "" ? " " : line}
          </div>
        );
      })}
    </div>
  );
}
