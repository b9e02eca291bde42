/** Make a call again with another input, by the form of its operation. */
import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";
import { Dialog, ErrorNotice, Loading } from "../../components";
import { CallForm } from "../operations/call_form";
import type { OperationDetail } from "../operations/types";
import type { CallDetails } from "./types";

export function CallAgain({ call, open, onClose }: { call: CallDetails; open: boolean; onClose: () => void }) {
  const { data, error, refetch } = useQuery({
    queryKey: ["operations", "one", call.operation],
    queryFn: ({ signal }) => api.get<OperationDetail>(`/api/operations/${encodeURIComponent(call.operation)}`, { signal }),
    enabled: open,
  });
  return (
    <Dialog open={open} onClose={onClose} title={`Call ${call.operation} again`}>
      <p className="muted small runs-again">
        It runs for you, outside of the run{call.effect === "once" ? ", and takes effect again" : ""}. The policy decides about it as about any call.
      </p>
      {error !== null && <ErrorNotice error={error} onRetry={() => void refetch()} />}
      {error === null && data === undefined && <Loading />}
      {open && data !== undefined && <CallForm key={call.id} operation={data} input={objectOf(call.input)} />}
    </Dialog>
  );
}

function objectOf(input: unknown): Record<string, unknown> {
  return typeof input === "object" && input !== null && !Array.isArray(input) ? (input as Record<string, unknown>) : {};
}
