/** The list of keys behind `?`. */
import { boundKeys, Dialog, Kbd, setSingleKeys, useSingleKeys } from "../components";
import { MOD } from "./navigation";

export function KeysList({ open, onClose }: { open: boolean; onClose: () => void }) {
  const single = useSingleKeys();
  return (
    <Dialog open={open} onClose={onClose} title="Keyboard shortcuts">
      {open &&
        boundKeys().map(([title, keys]) => (
          <section key={title} className="keys-group">
            <h3>{title}</h3>
            <dl>
              {keys.map(([key, what]) => (
                <div key={key}>
                  <dt>
                    {key.split(" ").map((part) => (
                      <Kbd key={part}>{part.replace("mod+", `${MOD} `)}</Kbd>
                    ))}
                  </dt>
                  <dd>{what}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      <label className="check">
        <input type="checkbox" checked={single} onChange={(event) => setSingleKeys(event.target.checked)} />
        <span>
          Single-key shortcuts, such as <Kbd>j</Kbd>, work outside of text fields
        </span>
      </label>
    </Dialog>
  );
}
