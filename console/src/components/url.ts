/** What a screen shows is in its address: filters and selection as query parameters, replaced, not pushed. */
import { useCallback } from "react";
import { useSearchParams } from "wouter";

/** The query parameters, and a function that sets some of them; null or "" removes one. */
export function useUrlState(): [URLSearchParams, (changes: Record<string, string | null>) => void] {
  const [params, setParams] = useSearchParams();
  const set = useCallback(
    (changes: Record<string, string | null>) => {
      setParams(
        (now) => {
          const next = new URLSearchParams(now);
          for (const [name, value] of Object.entries(changes)) {
            if (value === null || value === "") next.delete(name);
            else next.set(name, value);
          }
          return next;
        },
        { replace: true },
      );
    },
    [setParams],
  );
  return [params, set];
}
