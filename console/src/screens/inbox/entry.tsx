/** One request: what exactly would run, for whom, which rule asks; and its answer. */
import { useEffect, useRef, useState, type FormEvent, type RefObject } from "react";
import { Link } from "wouter";
import { Button, Expiry, Icon, Kbd, Kind, spell, spellTurns, Status, Time, useIsPast } from "../../components";
import { ruleText } from "../runs/types";
import { Arguments, hasToBeOpened } from "./arguments";
import type { Approval, FocusTarget } from "./types";

const UNREAD = "Open all of its arguments first";

export function Entry(props: {
  approval: Approval;
  current: boolean;
  /** Which one takes the focus once it can: effects of an earlier paint may run late, so it is named. */
  takesFocus: RefObject<FocusTarget | null>;
  /** From 1, of so many; -1 if there are more than are loaded. */
  place: number;
  of: number;
  picked: boolean;
  busy: boolean;
  /** Whether all that would run was shown: only then it can be approved. */
  isRead: boolean;
  primary: boolean;
  onCurrent: () => void;
  /** All arguments of the item at this place were shown. */
  onShownWhole: (item: number) => void;
  onPick: (picked: boolean) => void;
  onApprove: () => void;
  onDeny: () => void;
  onAlways: () => void;
  onAnswer: (text: string) => void;
}) {
  const { approval, current, takesFocus } = props;
  const element = useRef<HTMLElement>(null);
  useEffect(() => {
    let frame = 0;
    const take = () => {
      const target = takesFocus.current;
      if (!current || target?.id !== approval.id) return;
      const place = target.isAnswer ? element.current?.querySelector<HTMLElement>(".inbox-answers :is(button, input)") : element.current;
      place?.focus({ preventScroll: true });
      if (!place || document.activeElement === place) takesFocus.current = null;
      else frame = requestAnimationFrame(take); // the list hides an entry until it has measured it
    };
    take();
    return () => cancelAnimationFrame(frame);
  });
  const isOver = useIsPast(approval.expiresAt) && approval.status === "pending"; // the hub has not said so yet
  const open = approval.status === "pending" && !isOver;
  const isQuestion = approval.question !== null;
  const title = isQuestion ? approval.operation : approval.operations.join(", ");
  return (
    <article
      ref={element}
      tabIndex={current ? 0 : -1}
      aria-posinset={props.place}
      aria-setsize={props.of}
      className={`inbox-entry ${props.current ? "inbox-current" : ""}`}
      aria-label={`${isQuestion ? "Question of" : "Approval of"} ${title}`}
      aria-current={props.current || undefined}
      onClick={props.onCurrent}
    >
      <div className="inbox-mark">
        {open && approval.mayAnswer && !isQuestion ? (
          <input
            type="checkbox"
            aria-label={`Select ${title}`}
            checked={props.picked}
            onChange={(event) => props.onPick(event.target.checked)}
            onClick={(event) => event.stopPropagation()}
          />
        ) : (
          <Icon name={isQuestion ? "help" : "wait"} />
        )}
      </div>
      <div className="inbox-body">
        <p className="inbox-title">
          <b className="mono">{title}</b> <Kind kind={isQuestion ? "model" : "op"}>{isQuestion ? "question" : "approval"}</Kind>
          {!open && <Status status={isOver ? "expired" : approval.status === "used" ? "approved" : approval.status} />}
        </p>
        <p className="inbox-meta">
          {spellTurns(approval.owner)}
          {approval.agent !== null && `, through ${approval.agent}`}
          {approval.sessionTitle !== null && ` · “\u2068${spellTurns(approval.sessionTitle)}\u2069”`} · asked <Time at={approval.createdAt} />
          {open && (
            <>
              {" · "}
              <span className="inbox-left">
                <Expiry at={approval.expiresAt} />
              </span>
            </>
          )}
          {!open && approval.answeredAt !== null && (
            <>
              {" · "}
              {spellTurns(approval.answeredBy)} answered <Time at={approval.answeredAt} />
            </>
          )}
          {(approval.runId ?? approval.callId) !== null && (
            <>
              {" · "}
              <Link href={`/runs/${approval.runId ?? approval.callId}${approval.runId !== null && approval.callId !== null ? `?call=${approval.callId}` : ""}`}>
                {approval.runId === null ? "open call" : "open run"}
              </Link>
            </>
          )}
        </p>
        {approval.question !== null && <p className="inbox-question">{spell(approval.question.text)}</p>}
        {approval.question === null &&
          approval.items.map((item, at) => (
            <div key={at} className="inbox-item">
              {approval.items.length > 1 && <p className="mono small">{item.operation}</p>}
              <Arguments item={item} onShownWhole={() => hasToBeOpened(item) && props.onShownWhole(at)} />
              {item.reason !== null && <p className="inbox-why">Why it is asked: {spell(item.reason)}</p>}
            </div>
          ))}
        {open && approval.mayAnswer && !props.isRead && (
          <p className="inbox-unread">
            Its arguments are not all shown. Open all of them (<Kbd>o</Kbd>) before you approve: what is below the part that you see would run as well.
          </p>
        )}
        {open && approval.policy?.rule !== undefined && (
          <p className="muted small">
            asked by <code>{ruleText(approval.policy)}</code>
            {approval.answerers.join() !== "owner" && ` · may be answered by ${approval.answerers.join(", ")}`}
          </p>
        )}
        {!open && (approval.answer ?? approval.reason) !== null && <p className="inbox-why">“{approval.answer ?? approval.reason}”</p>}
        {open && !approval.mayAnswer && (
          <p className="muted small">
            You may not answer this: {approval.answerers.map((name) => (name === "owner" ? approval.owner : name)).join(", ")} may.
          </p>
        )}
        {open && approval.mayAnswer && approval.question !== null && (
          <Question options={approval.question.options} busy={props.busy} onAnswer={props.onAnswer} onDecline={props.onDeny} />
        )}
      </div>
      {open && approval.mayAnswer && !isQuestion && (
        <div className="inbox-actions">
          <Button look={props.primary ? "primary" : "plain"} icon="check" busy={props.busy} disabled={!props.isRead} title={props.isRead ? undefined : UNREAD} onClick={props.onApprove}>
            Approve
          </Button>
          <Button look="danger" disabled={props.busy} onClick={props.onDeny}>
            Deny…
          </Button>
          {approval.mayAlwaysAllow && (
            <Button look="quiet" disabled={props.busy || !props.isRead} title={props.isRead ? undefined : UNREAD} onClick={props.onAlways}>
              Always allow…
            </Button>
          )}
        </div>
      )}
    </article>
  );
}

function Question(props: { options: string[]; busy: boolean; onAnswer: (text: string) => void; onDecline: () => void }) {
  const [text, setText] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (text.trim() !== "") props.onAnswer(text.trim());
  };
  return (
    <div className="inbox-answers">
      {props.options.map((option) => (
        <Button key={option} busy={props.busy} onClick={() => props.onAnswer(option)}>
          {spell(option)}
        </Button>
      ))}
      <form onSubmit={submit}>
        <input className="input" aria-label="Your answer" placeholder={props.options.length > 0 ? "Another answer" : "Your answer"} value={text} onChange={(event) => setText(event.target.value)} />
        <Button type="submit" busy={props.busy} disabled={text.trim() === ""}>
          Answer
        </Button>
        <Button look="quiet" disabled={props.busy} onClick={props.onDecline}>
          Decline…
        </Button>
      </form>
    </div>
  );
}
