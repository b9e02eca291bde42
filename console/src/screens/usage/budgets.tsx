/** Budgets as bars, the one that is used most first. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { api } from "../../api/client";
import { useInvalidate } from "../../api/events";
import { useSession } from "../../api/session";
import { ErrorNotice, money, relativeTime, spellTurns } from "../../components";
import type { Budget, BudgetAnswer, BudgetSubject } from "./types";

const SHOWN = 12;

export function useBudgets() {
  useInvalidate("run.", ["budgets"]);
  return useQuery({
    queryKey: ["budgets"],
    queryFn: ({ signal }) => api.get<BudgetAnswer>("/api/budgets", { signal }),
  });
}

export function Budgets() {
  const session = useSession();
  const { data, error, refetch } = useBudgets();
  if (error !== null) return <ErrorNotice error={error} onRetry={() => void refetch()} />;
  const limited = (data?.budgets ?? []).filter((each) => each.budgets.length > 0);
  return (
    <section className="card usage-budgets" aria-label="Budgets">
      <h2>Budgets</h2>
      {data !== undefined && limited.length === 0 && (
        <p className="muted small">
          Nobody has a budget.{" "}
          {session.can("admin") ? (
            <>
              Give a key one under <Link href="/keys">Keys</Link>, or all keys of an owner with <code>limits.owner</code> in
              dragoman.yaml.
            </>
          ) : (
            "An administrator can give your keys one."
          )}
        </p>
      )}
      {limited.slice(0, SHOWN).map((each) => (
        <SubjectBudgets key={`${each.kind}:${each.id}`} subject={each} />
      ))}
      {limited.length > SHOWN && <p className="muted small">{limited.length - SHOWN} more have used less.</p>}
      {data?.unpriced === "allow" && limited.length > 0 && (
        <p className="muted small">Requests to models without a price pass, and cost nothing here.</p>
      )}
    </section>
  );
}

function SubjectBudgets({ subject }: { subject: BudgetSubject }) {
  const name = subject.kind === "owner" ? subject.id : (subject.name ?? subject.id);
  return (
    <div className="usage-budget">
      {subject.budgets.map((budget, at) => (
        <BudgetBar key={budget.window} budget={budget} name={at === 0 ? name : ""} kind={subject.kind} />
      ))}
    </div>
  );
}

export function BudgetBar({ budget, name, kind }: { budget: Budget; name: string; kind: string }) {
  const used = budget.spent + budget.reserved;
  const share = budget.limit > 0 ? Math.min(1, used / budget.limit) : 1;
  const per = budget.window === "total" ? "in total" : `/ ${budget.window}`;
  const title = budget.resetsAt === null ? "It is never reset." : `It is reset ${relativeTime(budget.resetsAt)}.`;
  return (
    <div title={title}>
      <div className="usage-budget-line">
        <span>
          <b>{spellTurns(name)}</b> {name !== "" && <span className="muted small">{kind}</span>}
        </span>
        <span className="muted num">
          {money(budget.spent)} of {money(budget.limit)} {per}
        </span>
      </div>
      <div
        className={`usage-meter ${share >= 0.8 ? "usage-meter-hot" : ""}`}
        role="meter"
        aria-label={`${name} ${per}`}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.round(share * 100)}
        aria-valuetext={`${money(used)} of ${money(budget.limit)}. ${title}`}
      >
        <i style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}
