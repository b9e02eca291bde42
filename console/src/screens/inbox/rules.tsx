/** What is always allowed, and the way back. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client";
import { reread, useInvalidate } from "../../api/events";
import { Button, Dialog, ErrorNotice, Loading, Time, toast, toastError } from "../../components";
import type { StandingRule } from "./types";

export function RulesDialog({ open, onClose }: { open: boolean; onClose: () => void }) {
  const client = useQueryClient();
  const [busy, setBusy] = useState<string | null>(null);
  const { data, error, refetch } = useQuery({
    queryKey: ["policy-rules"],
    queryFn: ({ signal }) => api.get<{ rules: StandingRule[] }>("/api/policy/rules", { signal }),
    enabled: open,
  });
  useInvalidate("policy.", ["policy-rules"]);
  const revoke = async (rule: StandingRule) => {
    setBusy(rule.id);
    try {
      await api.delete(`/api/policy/rules/${encodeURIComponent(rule.id)}`);
      toast(`${rule.operation} is asked about again`);
      await reread(client, ["policy-rules"]);
    } catch (failure) {
      toastError(failure);
    } finally {
      setBusy(null);
    }
  };
  return (
    <Dialog open={open} onClose={onClose} title="Always allowed">
      {error !== null && <ErrorNotice error={error} onRetry={() => void refetch()} />}
      {error === null && data === undefined && <Loading />}
      {data?.rules.length === 0 && <p className="muted">Nothing is always allowed. “Always allow…” beside a request adds a rule.</p>}
      <ul className="inbox-rules">
        {data?.rules.map((rule) => (
          <li key={rule.id}>
            <div>
              <b className="mono">{rule.operation}</b>
              <p className="muted small">
                for {rule.owner}
                {rule.agent !== null && `, through ${rule.agent}`} · by {rule.createdBy}, <Time at={rule.createdAt} />
                {rule.inForce === false && " · not in force: the operation is gone or has changed"}
              </p>
            </div>
            <Button look="danger" busy={busy === rule.id} onClick={() => void revoke(rule)}>
              Revoke
            </Button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
